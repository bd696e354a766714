#pragma once
/// Functions of a library that is opened when it is needed, so that processes that do not need it
/// neither load nor require it.
///
///   struct X {
///     SharedLibrary library;  // first, because the others are found in it
///     int (*create)(const char* name) = library.Find("x_create");
///   };
///   CAIRN_TRY_ASSIGN(SharedLibrary opened, SharedLibrary::Open("libx.so.1", "of X", kAdvice));
///   X x{opened};
///   CAIRN_TRY(x.library.CheckComplete());

#include <dlfcn.h>
#include <fmt/format.h>

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
  static Result<SharedLibrary> Open(const char* name, const char* what, const char* advice) {
    const SharedLibrary opened(::dlopen(name, RTLD_NOW | RTLD_LOCAL), name, advice);
    if (opened.handle_ != nullptr) return opened;
    const char* const reason = ::dlerror();
    return opened.Unusable(
        fmt::format("cannot open the library {}: {}", what, reason != nullptr ? reason : name));
  }

  /// The address of a function, which becomes a pointer of its type.
  struct Function {
    void* address;
    template <typename Pointer>
      requires std::is_pointer_v<Pointer>
    operator Pointer() const {  // NOLINT(google-explicit-constructor): for initializers
      return reinterpret_cast<Pointer>(address);
    }
  };
  /// Returns the function of this name, or null.
  Function Find(const char* name) {
    void* const address = ::dlsym(handle_, name);
    if (address == nullptr) missing_ = name;
    return {address};
  }
  /// kFailedPrecondition: a function was not found.
  Result<void> CheckComplete() const {
    if (missing_ == nullptr) return {};
    return Unusable(fmt::format("the library {} has no function {}", name_, missing_));
  }

  /// Returns the error for a library that cannot be used: what is wrong, and the advice.
  std::unexpected<Error> Unusable(const std::string& what) const {
    return Fail(ErrorCode::kFailedPrecondition, fmt::format("{}; {}", what, advice_));
  }

 private:
  SharedLibrary(void* handle, const char* name, const char* advice)
      : handle_(handle), name_(name), advice_(advice) {}

  void* handle_;
  const char* name_;
  const char* advice_;
  const char* missing_ = nullptr;  // a function that was not found
};

}  // namespace cairn::kv::internal
