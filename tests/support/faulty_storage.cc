// Faults of operations on objects.

#include "tests/support/faulty_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <thread>
#include <type_traits>

#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

bool IsWrite(StorageOperation operation) {
  return operation != StorageOperation::kReadRange && operation != StorageOperation::kSize &&
         operation != StorageOperation::kList;
}

const char* FaultText(StorageFault fault) {
  switch (fault) {
    case StorageFault::kLoseResponse:
      return "the response was lost";
    case StorageFault::kConflict:
      return "the object exists";
    case StorageFault::kTear:
      return "the upload was torn";
    case StorageFault::kPowerCut:
      return "the power was cut";
    default:
      return "the request was refused";
  }
}

std::span<const std::string> LastOf(const std::vector<std::string>& names, size_t count) {
  return std::span(names).last(std::min(count, names.size()));
}

}  // namespace

const char* StorageOperationName(StorageOperation operation) {
  static constexpr const char* kNames[] = {"Put",    "PutIfAbsent",    "Create", "Append",
                                           "Finish", "ReadRange",      "Size",   "List",
                                           "Remove", "RemoveLeftovers"};
  return kNames[static_cast<size_t>(operation)];
}

const char* StorageFaultName(StorageFault fault) {
  static constexpr const char* kNames[] = {"None",     "Refuse", "LoseResponse", "LoseWrite",
                                           "Conflict", "Tear",   "PowerCut",     "Delay"};
  return kNames[static_cast<size_t>(fault)];
}

bool CanHappen(StorageFault fault, StorageOperation operation) {
  switch (fault) {
    case StorageFault::kLoseWrite:
      // A writer that was not created, or misses a piece, is a broken client and not a fault.
      return IsWrite(operation) && operation != StorageOperation::kCreate &&
             operation != StorageOperation::kAppend;
    case StorageFault::kConflict:
      return operation == StorageOperation::kPutIfAbsent;
    case StorageFault::kTear:
      return operation == StorageOperation::kFinish;
    default:
      return true;
  }
}

FaultPlan FaultAt(uint64_t index, StorageFault fault) {
  return [=](const StorageCall& call) { return call.index == index ? fault : StorageFault::kNone; };
}

/// Holds back the last piece, so that Finish can omit its end. Ownership: `storage` outlives it.
class FaultyStorage::Writer final : public ObjectWriter {
 public:
  Writer(FaultyStorage& storage, std::string_view name, std::unique_ptr<ObjectWriter> base)
      : storage_(storage), name_(name), base_(std::move(base)) {}

  Result<void> Append(std::span<const std::byte> bytes) override {
    return storage_.Call(StorageOperation::kAppend, name_, [&]() -> Result<void> {
      CAIRN_TRY(base_->Append(held_));
      held_.assign(bytes.begin(), bytes.end());
      return {};
    });
  }
  Result<void> Finish() override {
    const StorageFault fault = storage_.Enter(StorageOperation::kFinish, name_);
    if (fault == StorageFault::kTear) held_.resize(held_.size() / 2);
    return storage_.ApplyToPut(fault, StorageOperation::kFinish, name_, [&]() -> Result<void> {
      CAIRN_TRY(base_->Append(held_));
      return base_->Finish();
    });
  }

 private:
  FaultyStorage& storage_;
  const std::string name_;
  const std::unique_ptr<ObjectWriter> base_;
  std::vector<std::byte> held_;
};

void FaultyStorage::SetPlan(FaultPlan plan) {
  const MutexLock lock(mutex_);
  plan_ = std::move(plan);
}

void FaultyStorage::SetDelay(std::chrono::milliseconds delay) {
  const MutexLock lock(mutex_);
  delay_ = delay;
}

void FaultyStorage::SetStaleListing(size_t omitted_put_count, size_t kept_removal_count) {
  const MutexLock lock(mutex_);
  omitted_put_count_ = omitted_put_count;
  kept_removal_count_ = kept_removal_count;
}

void FaultyStorage::KeepRemoved() {
  const MutexLock lock(mutex_);
  keeps_removed_ = true;
}

Result<void> FaultyStorage::RestoreRemoved() {
  const MutexLock lock(mutex_);
  for (const auto& [name, bytes] : removed_) {
    const Result<void> put = base_->PutIfAbsent(name, bytes);
    if (!put && put.error().code != ErrorCode::kConflict) return put;
  }
  return {};
}

std::vector<StorageCall> FaultyStorage::Log() const {
  const MutexLock lock(mutex_);
  return log_;
}

Result<void> FaultyStorage::Put(std::string_view name, std::span<const std::byte> bytes) {
  const StorageFault fault = Enter(StorageOperation::kPut, name);
  return ApplyToPut(fault, StorageOperation::kPut, name, [&] { return base_->Put(name, bytes); });
}

Result<void> FaultyStorage::PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) {
  const StorageFault fault = Enter(StorageOperation::kPutIfAbsent, name);
  return ApplyToPut(fault, StorageOperation::kPutIfAbsent, name,
                    [&] { return base_->PutIfAbsent(name, bytes); });
}

Result<std::unique_ptr<ObjectWriter>> FaultyStorage::Create(std::string_view name) {
  return Call(StorageOperation::kCreate, name, [&]() -> Result<std::unique_ptr<ObjectWriter>> {
    CAIRN_TRY_ASSIGN(std::unique_ptr<ObjectWriter> base, base_->Create(name));
    return std::make_unique<Writer>(*this, name, std::move(base));
  });
}

Result<void> FaultyStorage::ReadRange(std::string_view name, uint64_t offset_bytes,
                                      std::span<std::byte> target) {
  return Call(StorageOperation::kReadRange, name,
              [&] { return base_->ReadRange(name, offset_bytes, target); });
}

Result<uint64_t> FaultyStorage::Size(std::string_view name) {
  return Call(StorageOperation::kSize, name, [&] { return base_->Size(name); });
}

Result<std::vector<std::string>> FaultyStorage::List(std::string_view prefix) {
  return Call(StorageOperation::kList, prefix, [&]() -> Result<std::vector<std::string>> {
    CAIRN_TRY_ASSIGN(const std::vector<std::string> all, base_->List(prefix));
    std::set<std::string> names(all.begin(), all.end());
    const MutexLock lock(mutex_);
    for (const std::string& name : LastOf(puts_, omitted_put_count_)) names.erase(name);
    for (const std::string& name : LastOf(removals_, kept_removal_count_)) {
      if (name.starts_with(prefix)) names.insert(name);
    }
    return std::vector<std::string>(names.begin(), names.end());
  });
}

Result<void> FaultyStorage::Remove(std::string_view name) {
  return Call(StorageOperation::kRemove, name, [&]() -> Result<void> {
    auto bytes = base_->Read(name, ~uint64_t{0});
    CAIRN_TRY(base_->Remove(name));
    const MutexLock lock(mutex_);
    removals_.emplace_back(name);
    if (keeps_removed_ && bytes) removed_[std::string(name)] = *std::move(bytes);
    return {};
  });
}

Result<void> FaultyStorage::RemoveLeftovers(uint32_t end_epoch) {
  return Call(StorageOperation::kRemoveLeftovers, "",
              [&] { return base_->RemoveLeftovers(end_epoch); });
}

StorageFault FaultyStorage::Enter(StorageOperation operation, std::string_view name) {
  MutexLock lock(mutex_);
  log_.push_back({.index = log_.size(), .operation = operation, .name = std::string(name)});
  if (power_cut_) return StorageFault::kPowerCut;
  StorageFault fault = plan_ ? plan_(log_.back()) : StorageFault::kNone;
  if (!CanHappen(fault, operation)) fault = StorageFault::kNone;
  power_cut_ = fault == StorageFault::kPowerCut;
  if (fault != StorageFault::kDelay) return fault;
  const std::chrono::milliseconds delay = delay_;
  lock.Unlock();
  std::this_thread::sleep_for(delay);
  return StorageFault::kNone;
}

template <typename Perform>
auto FaultyStorage::Apply(StorageFault fault, StorageOperation operation, std::string_view name,
                          const Perform& perform) -> decltype(perform()) {
  switch (fault) {
    case StorageFault::kNone:
    case StorageFault::kDelay:
      return perform();
    case StorageFault::kRefuse:
    case StorageFault::kPowerCut:
      break;
    case StorageFault::kLoseWrite:
      if constexpr (std::is_same_v<decltype(perform()), Result<void>>) return {};
      break;
    case StorageFault::kLoseResponse:
      (void)perform();  // a lost response has no error either
      break;
    case StorageFault::kConflict:
    case StorageFault::kTear:
      CAIRN_TRY(perform());
      break;
  }
  return Fail(Error{
      .code = fault == StorageFault::kConflict ? ErrorCode::kConflict : ErrorCode::kUnavailable,
      .message = fmt::format("injected fault of {}: {}", StorageOperationName(operation),
                             FaultText(fault)),
      .file = ObjectPath(address(), name)});
}

template <typename Perform>
auto FaultyStorage::Call(StorageOperation operation, std::string_view name, const Perform& perform)
    -> decltype(perform()) {
  return Apply(Enter(operation, name), operation, name, perform);
}

template <typename Perform>
Result<void> FaultyStorage::ApplyToPut(StorageFault fault, StorageOperation operation,
                                       std::string_view name, const Perform& perform) {
  return Apply(fault, operation, name, [&]() -> Result<void> {
    CAIRN_TRY(perform());
    const MutexLock lock(mutex_);
    puts_.emplace_back(name);
    return {};
  });
}

}  // namespace cairn::kv::internal
