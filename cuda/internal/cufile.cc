// cuFile: dlopen and dlsym, the findings per file system, and transfers.

#include "cuda/internal/cufile.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <string_view>
#include <utility>

#include "cuda/internal/cuda_call.h"
#include "cuda/internal/file_trial.h"
#include "cuda/internal/gds_reach.h"
#include "kv/file_descriptor.h"
#include "kv/mutex.h"

#if __has_include(<cufile.h>)
#include <cufile.h>
#define CAIRN_HAS_CUFILE_HEADER 1
#endif

namespace cairn::cuda::internal {

#ifdef CAIRN_HAS_CUFILE_HEADER

namespace {

using FileUse = core::DeviceBackend::FileUse;

constexpr const char* kName = "libcufile.so.0";
constexpr const char* kPathVariable = "CAIRN_CUFILE_LIBRARY";
constexpr const char* kModeVariable = "CAIRN_GDS";

std::unexpected<Error> Unusable(std::string why) {
  return Fail(ErrorCode::kFailedPrecondition, std::move(why));
}

enum class Mode { kOff, kAuto, kOn };

Result<Mode> ModeFromEnvironment() {
  const char* const text = std::getenv(kModeVariable);
  const std::string_view mode = text == nullptr ? "" : text;
  if (mode.empty() || mode == "auto") return Mode::kAuto;
  if (mode == "on") return Mode::kOn;
  if (mode == "off") return Mode::kOff;
  return Fail(ErrorCode::kInvalidArgument,
              fmt::format("{}={}: must be \"auto\", \"on\" or \"off\"", kModeVariable, mode));
}

/// The functions that Cairn calls, and the properties of the driver. Never closed: cuFile runs its
/// own threads, and cleans up when the process ends.
struct Library {
  decltype(&cuFileDriverOpen) DriverOpen = nullptr;
  decltype(&cuFileDriverGetProperties) DriverGetProperties = nullptr;
  decltype(&cuFileHandleRegister) HandleRegister = nullptr;
  decltype(&cuFileHandleDeregister) HandleDeregister = nullptr;
  decltype(&cuFileRead) Read = nullptr;
  decltype(&cuFileWrite) Write = nullptr;
  CUfileDrvProps_t properties{};
  pid_t process = 0;
};

std::string Describe(CUfileError_t status) {
  return status.err == CU_FILE_CUDA_DRIVER_ERROR
             ? fmt::format("CUDA error {}", static_cast<int>(status.cu_err))
             : fmt::format("{} ({})", cufileop_status_error(status.err),
                           static_cast<int>(status.err));
}

Result<Library> LoadLibrary() {
  const char* const given = std::getenv(kPathVariable);
  const char* const name = given != nullptr && *given != '\0' ? given : kName;
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Unusable(fmt::format("{} cannot be opened: {}", name, ::dlerror()));
  Library library{.process = ::getpid()};
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(handle, symbol));
    return function != nullptr;
  };
  if (!find(library.DriverOpen, "cuFileDriverOpen") ||
      !find(library.DriverGetProperties, "cuFileDriverGetProperties") ||
      !find(library.HandleRegister, "cuFileHandleRegister") ||
      !find(library.HandleDeregister, "cuFileHandleDeregister") ||
      !find(library.Read, "cuFileRead") || !find(library.Write, "cuFileWrite")) {
    return Unusable(fmt::format("{} lacks a function of cuFile", name));
  }
  // Another user in this process may have opened the driver already.
  const CUfileError_t opened = library.DriverOpen();
  if (opened.err != CU_FILE_SUCCESS && opened.err != CU_FILE_DRIVER_ALREADY_OPEN) {
    return Unusable("the cuFile driver does not open: " + Describe(opened));
  }
  const CUfileError_t asked = library.DriverGetProperties(&library.properties);
  if (asked.err != CU_FILE_SUCCESS) {
    return Unusable("cuFile does not report the properties of its driver: " + Describe(asked));
  }
  return library;
}

/// Opens the library at the first call. What was missing then is missing until the process ends.
Result<const Library*> OpenLibrary() {
  static Mutex mutex;
  static const Result<Library>* opened = nullptr;  // never freed: files may outlive statics
  const MutexLock lock(mutex);
  if (opened == nullptr) opened = new Result<Library>(LoadLibrary());
  CAIRN_TRY(*opened);
  if ((*opened)->process != ::getpid()) {
    return Unusable("cuFile cannot be used in a forked child");
  }
  return &**opened;
}

/// What this process has found out about file systems, by device number (st_dev). Threads: safe.
class Findings {
 public:
  static Findings& Get() {
    static Findings& findings = *new Findings;  // never freed: transfers may outlive statics
    return findings;
  }

  /// Returns the error that occurred earlier on this file system, if any.
  Result<void> Check(dev_t device) {
    const MutexLock lock(mutex_);
    const auto found = results_.find(device);
    return found == results_.end() ? Result<void>() : found->second;
  }
  /// Returns the result of `trial`, which runs once per file system; concurrent callers wait for
  /// it.
  template <typename Trial>
  Result<void> TryOutOnce(dev_t device, const Trial& trial) {
    const MutexLock one_trial(trial_mutex_);
    {
      const MutexLock lock(mutex_);
      if (const auto found = results_.find(device); found != results_.end()) return found->second;
    }
    Result<void> result = trial();
    // Not kept: a full disk or device may have room again later.
    if (result || result.error().code != ErrorCode::kResourceExhausted) {
      const MutexLock lock(mutex_);
      results_.insert_or_assign(device, result);
    }
    return result;
  }
  /// Makes Check and TryOutOnce fail for this file system from now on.
  void TurnOff(dev_t device, const Error& error) {
    const MutexLock lock(mutex_);
    results_.insert_or_assign(
        device,
        Unusable("it is turned off for this file system because it failed: " + error.ToString()));
  }

 private:
  Mutex trial_mutex_;  // held while a trial runs; taken first
  Mutex mutex_;
  std::map<dev_t, Result<void>> results_ CAIRN_GUARDED_BY(mutex_);
};

/// A file registered with cuFile, through a duplicate of the descriptor: cuFile accepts each
/// descriptor only once.
class File final : public core::DeviceFile {
 public:
  static Result<std::unique_ptr<File>> Register(const Library& library, int fd, dev_t device) {
    kv::FileDescriptor duplicate(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!duplicate.is_open()) return Fail(SystemError(errno, "cannot register a file with cuFile"));
    CUfileDescr_t descriptor{};
    descriptor.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    descriptor.handle.fd = duplicate.get();
    CUfileHandle_t handle = nullptr;
    const CUfileError_t status = library.HandleRegister(&handle, &descriptor);
    if (status.err != CU_FILE_SUCCESS) {
      return Unusable("cuFile does not accept the file: " + Describe(status));
    }
    return std::unique_ptr<File>(new File(&library, handle, std::move(duplicate), device));
  }
  ~File() override {
    library_->HandleDeregister(handle_);  // before fd_ is closed
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  Result<void> Write(int device, std::span<const std::byte> source,
                     uint64_t offset_bytes) override {
    return Transfer(device, source.size(), offset_bytes, "writing from a GPU with cuFile", ENOSPC,
                    [&](uint64_t done, size_t count, off_t offset) {
                      return library_->Write(handle_, source.data() + done, count, offset, 0);
                    });
  }
  Result<void> Read(int device, std::span<std::byte> target, uint64_t offset_bytes) override {
    return Transfer(device, target.size(), offset_bytes, "reading to a GPU with cuFile", EIO,
                    [&](uint64_t done, size_t count, off_t offset) {
                      return library_->Read(handle_, target.data() + done, count, offset, 0);
                    });
  }

 private:
  File(const Library* library, CUfileHandle_t handle, kv::FileDescriptor fd, dev_t device)
      : library_(library), handle_(handle), fd_(std::move(fd)), storage_device_(device) {}

  /// Calls `call` until all bytes are transferred. `at_end`: the errno for a call that transfers
  /// nothing.
  template <typename Call>
  Result<void> Transfer(int device, uint64_t length_bytes, uint64_t offset_bytes, const char* what,
                        int at_end, const Call& call) {
    const DeviceScope scope(device);
    for (uint64_t done = 0; done < length_bytes;) {
      errno = 0;
      const ssize_t count =
          call(done, length_bytes - done, static_cast<off_t>(offset_bytes + done));
      const int error_number = errno;
      if (count > 0) {
        done += static_cast<uint64_t>(count);
        continue;
      }
      Error error = ErrorOf(count, count == 0 ? at_end : error_number, what);
      error.offset_bytes = offset_bytes + done;
      // A retry goes through host memory. A full disk is full either way.
      if (count != 0 && error.code != ErrorCode::kResourceExhausted) {
        Findings::Get().TurnOff(storage_device_, error);
      }
      return Fail(std::move(error));
    }
    return {};
  }

  /// `count`: -1 means errno; smaller values are codes of cuFile, or system errors that it passes
  /// on.
  static Error ErrorOf(ssize_t count, int error_number, const char* what) {
    if (count < -CUFILEOP_BASE_ERR) {
      const auto status = static_cast<CUfileOpError>(-count);
      return {
          .code = ErrorCode::kUnavailable,
          .message = fmt::format("{}: {} ({}); try again: GPUDirect Storage is off from now on",
                                 what, cufileop_status_error(status), static_cast<int>(status))};
    }
    if (count < -1) error_number = static_cast<int>(-count);
    return SystemError(error_number == 0 ? EIO : error_number, what);
  }

  const Library* const library_;  // lives as long as the process
  const CUfileHandle_t handle_;
  const kv::FileDescriptor fd_;
  const dev_t storage_device_;
};

/// Returns the library, if CAIRN_GDS allows it and it serves the storage.
Result<const Library*> FindLibraryFor(const FileStorage& storage) {
  CAIRN_TRY_ASSIGN(const Mode mode, ModeFromEnvironment());
  if (mode == Mode::kOff) return Unusable(fmt::format("{}=off", kModeVariable));
  CAIRN_TRY(Findings::Get().Check(storage.device));
  // Checked before the library is opened, because its driver starts threads.
  unsigned flags = 0;
  if (mode == Mode::kAuto) {
    CAIRN_TRY_ASSIGN(flags, FlagsThatServe(storage));
  }
  CAIRN_TRY_ASSIGN(const Library* const library, OpenLibrary());
  if (mode == Mode::kAuto && (library->properties.nvfs.dstatusflags & flags) == 0) {
    return Unusable(
        "the cuFile driver does not serve this file system (is the kernel module nvidia-fs "
        "loaded?)");
  }
  return library;
}

Result<void> TryOut(const Library& library, core::DeviceBackend& backend, int device,
                    const FileStorage& storage, const std::string& directory) {
  return Findings::Get().TryOutOnce(storage.device, [&] {
    return TryOutFile(backend, device, directory,
                      [&](int fd) -> Result<std::unique_ptr<core::DeviceFile>> {
                        return File::Register(library, fd, storage.device);
                      });
  });
}

}  // namespace

Result<void> CheckCuFileBuild() { return {}; }

Result<std::unique_ptr<core::DeviceFile>> OpenCuFile(core::DeviceBackend& backend, int device,
                                                     int fd, const std::string& path, FileUse use) {
  CAIRN_TRY_ASSIGN(const FileStorage storage, FindStorage(fd));
  CAIRN_TRY_ASSIGN(const Library* const library, FindLibraryFor(storage));
  if (use == FileUse::kWrite) {
    const size_t slash = path.rfind('/');
    CAIRN_TRY(TryOut(*library, backend, device, storage,
                     slash == path.npos ? "." : path.substr(0, slash)));
  }
  return File::Register(*library, fd, storage.device);
}

Result<void> TryOutDirectory(core::DeviceBackend& backend, const std::string& directory) {
  const kv::FileDescriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_open()) return Fail(SystemError(errno, "cannot open the directory", directory));
  CAIRN_TRY_ASSIGN(const FileStorage storage, FindStorage(fd.get()));
  CAIRN_TRY_ASSIGN(const Library* const library, FindLibraryFor(storage));
  int device = 0;
  CAIRN_TRY(Check(cudaGetDevice(&device), "querying the current GPU"));
  return TryOut(*library, backend, device, storage, directory);
}

#else

Result<void> CheckCuFileBuild() {
  return Fail(ErrorCode::kUnimplemented, "this build was made without cufile.h");
}

Result<std::unique_ptr<core::DeviceFile>> OpenCuFile(core::DeviceBackend&, int, int,
                                                     const std::string&,
                                                     core::DeviceBackend::FileUse) {
  CAIRN_TRY(CheckCuFileBuild());
  return nullptr;
}

Result<void> TryOutDirectory(core::DeviceBackend&, const std::string&) {
  return CheckCuFileBuild();
}

#endif

}  // namespace cairn::cuda::internal
