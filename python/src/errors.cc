// The table from error codes to Python exceptions, and the check for signals.

#include "python/src/errors.h"

#include <utility>

#include "core/base/hint_text.h"
#include "python/src/gil.h"

namespace cairn::python {
namespace {

// Returns the name of the class in cairn.errors. The class depends on the caller's possible
// reaction to the error, not on its place.
const char* ExceptionName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotFound:
      return "NotFound";
    case ErrorCode::kDataLoss:
      return "Corrupt";
    case ErrorCode::kConflict:
      return "Conflict";
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kUnimplemented:
      return "Invalid";
    case ErrorCode::kUnavailable:
    case ErrorCode::kResourceExhausted:
    case ErrorCode::kCancelled:
      return "Unavailable";
    case ErrorCode::kInternal:
      return "Error";
  }
  return "Error";
}

// Returns the text as str, for any bytes that a path or key may contain; None if it is empty.
nb::object TextOrNone(const std::string& text) {
  if (text.empty()) return nb::none();
  const auto size = static_cast<Py_ssize_t>(text.size());
  if (PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), size, "surrogatepass")) {
    return nb::steal(decoded);
  }
  PyErr_Clear();
  return nb::steal(PyUnicode_DecodeUTF8(text.data(), size, "backslashreplace"));
}

nb::object NumberOrNone(const std::optional<uint64_t>& number) {
  if (!number) return nb::none();
  return nb::int_(*number);
}

// Returns what to try after the error, in the terms of the package; empty if nothing is known.
std::string NextStep(const Error& error) {
  static const core::HintTexts texts{.create_store = "mode=\"a\" creates one",
                                     .open_for_writing = "cairn.open(..., mode=\"a\") does so",
                                     .overwrite = "overwrite=True replaces it",
                                     .list_steps = "Store.steps() lists all steps",
                                     .list_keys = "Store.keys() lists all keys"};
  return core::HintText(error, texts, core::StoreOfObject(error.file));
}

nb::object MakeException(const Error& error, const std::string& text) {
  return RunPython([&]() -> nb::object {
    nb::object type = nb::module_::import_("cairn.errors").attr(ExceptionName(error.code));
    return type(TextOrNone(text), nb::arg("key") = TextOrNone(error.key),
                nb::arg("step") = NumberOrNone(error.step),
                nb::arg("file") = TextOrNone(error.file),
                nb::arg("offset") = NumberOrNone(error.offset_bytes));
  });
}

[[noreturn]] void Raise(const Error& error, const std::string& text) {
  const nb::object exception = MakeException(error, text);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace

void Throw(const Error& error) {
  const std::string next = NextStep(error);
  Raise(error, next.empty() ? error.ToString() : error.ToString() + "; " + next);
}

nb::object ToPyDamage(Error damage) {
  damage.code = ErrorCode::kDataLoss;
  return MakeException(damage, damage.ToString());
}

void ThrowInvalid(const std::string& message, const std::string& key,
                  std::optional<uint64_t> step) {
  Raise(Error{.code = ErrorCode::kInvalidArgument, .message = message, .key = key, .step = step},
        message);
}

namespace {

thread_local int running_functions = 0;  // of a SignalWatch, in each other

struct RunningFunction {
  RunningFunction() { ++running_functions; }
  ~RunningFunction() { --running_functions; }
  RunningFunction(const RunningFunction&) = delete;
  RunningFunction& operator=(const RunningFunction&) = delete;
};

}  // namespace

bool SignalWatch::IsRunningPython() { return running_functions > 0; }

core::Progress SignalWatch::AsProgress() {
  return [this](uint64_t done, uint64_t total) { return Report(done, total); };
}

bool SignalWatch::Check() {
  if (is_interrupted_) return false;
  if (!IsDue(last_check_)) return true;
  const GilAcquire gil;
  return gil && CheckSignals();
}

bool SignalWatch::CheckSignals() {
  const RunningFunction running;
  if (PyErr_CheckSignals() == 0) return true;
  raised_.emplace();
  is_interrupted_ = true;
  return false;
}

core::Progress SignalWatch::AsProgressOfWorker() {
  return [this](uint64_t done, uint64_t total) {
    std::unique_lock lock(mutex_);
    report_ = WorkerReport{.done_bytes = done, .total_bytes = total};
    changed_.notify_all();
    changed_.wait(lock, [this] { return !report_.has_value() || is_released_; });
    return may_continue_ && !is_released_;
  };
}

bool SignalWatch::AwaitEnd() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, WaitSlice(), [this] { return has_ended_ || report_.has_value(); });
  if (!report_) return has_ended_;
  const WorkerReport report = *report_;
  lock.unlock();
  const bool may_continue = Report(report.done_bytes, report.total_bytes);
  lock.lock();
  may_continue_ = may_continue;
  report_.reset();
  changed_.notify_all();
  return has_ended_;
}

void SignalWatch::ReleaseWorker() {
  const std::lock_guard lock(mutex_);
  is_released_ = true;
  changed_.notify_all();
}

void SignalWatch::SetEnded() {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  changed_.notify_all();
}

bool SignalWatch::Report(uint64_t done_bytes, uint64_t total_bytes) {
  return ReportTo([&] { return progress_.Call(done_bytes, total_bytes); });
}

bool SignalWatch::ReportTo(const std::function<bool()>& function) {
  if (raised_ || is_stopped_) return false;
  if (!IsDue(last_report_)) return true;
  const GilAcquire gil;
  if (!gil) return false;
  if (!CheckSignals()) return false;
  const RunningFunction running;
  try {
    is_stopped_ = !function();
  } catch (nb::python_error& error) {
    raised_.emplace(std::move(error));
    return false;
  }
  return !is_stopped_;
}

bool SignalWatch::IsDue(std::chrono::steady_clock::time_point& last) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last < ProgressInterval()) return false;
  last = now;
  return true;
}

void SignalWatch::Rethrow() {
  if (!raised_) return;
  nb::python_error error = std::move(*raised_);
  raised_.reset();
  throw error;
}

}  // namespace cairn::python
