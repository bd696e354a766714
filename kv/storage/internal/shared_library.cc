#include "kv/storage/internal/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>

namespace cairn::kv::internal {

Result<SharedLibrary> SharedLibrary::Open(const char* name, const char* what, const char* advice) {
  const SharedLibrary opened(::dlopen(name, RTLD_NOW | RTLD_LOCAL), name, advice);
  if (opened.handle_ != nullptr) return opened;
  const char* const reason = ::dlerror();
  return opened.Unusable(
      fmt::format("cannot open the library {}: {}", what, reason != nullptr ? reason : name));
}

SharedLibrary::Function SharedLibrary::Find(const char* name) {
  void* const address = ::dlsym(handle_, name);
  if (address == nullptr) missing_ = name;
  return {address};
}

Result<void> SharedLibrary::CheckComplete() const {
  if (missing_ == nullptr) return {};
  return Unusable(fmt::format("the library {} has no function {}", name_, missing_));
}

std::unexpected<Error> SharedLibrary::Unusable(std::string what) const {
  return Fail(ErrorCode::kFailedPrecondition, fmt::format("{}; {}", std::move(what), advice_));
}

}  // namespace cairn::kv::internal
