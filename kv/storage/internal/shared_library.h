#pragma once
/// Functions of a library that is opened when it is needed, so that processes that do not need it
/// neither load nor require it.
///
///   CAIRN_TRY_ASSIGN(SharedLibrary opened, SharedLibrary::Open("libx.so.1", "of X", kAdvice));
///   opened.Find("x_create", api.create);
///   CAIRN_TRY(opened.CheckComplete());

#include <string>
#include <type_traits>

#include "kv/base/error.h"

namespace cairn::kv::internal {

/// Ownership: the library is never closed, because threads may use it until the process ends.
/// Strings must outlive the object. Threads: one.
class SharedLibrary {
 public:
  /// `what` and `advice` are for errors: "of HTTP", and what to install. kFailedPrecondition: the
  /// library cannot be opened; the message contains the reason and the advice.
  static Result<SharedLibrary> Open(const char* name, const char* what, const char* advice);

  /// Sets `function` to the function of this name, or to null.
  template <typename Function>
  void Find(const char* name, Function& function) {
    static_assert(std::is_pointer_v<Function>);
    function = reinterpret_cast<Function>(Lookup(name));
  }
  /// kFailedPrecondition: a function was not found.
  Result<void> CheckComplete() const;

  /// Returns the error for a library that cannot be used: what is wrong, and the advice.
  std::unexpected<Error> Unusable(std::string what) const;

 private:
  SharedLibrary(void* handle, const char* name, const char* advice)
      : handle_(handle), name_(name), advice_(advice) {}
  void* Lookup(const char* name);

  void* handle_;
  const char* name_;
  const char* advice_;
  const char* missing_ = nullptr;  // a function that was not found
};

}  // namespace cairn::kv::internal
