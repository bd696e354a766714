// cuFile, opened at run time: its driver, what it reaches, and files registered with it.

#include "cuda/gds.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "cuda/backend.h"
#include "cuda/internal/cuda_call.h"
#include "cuda/internal/file_trial.h"

#if __has_include(<cufile.h>)
#include <cufile.h>
#define CAIRN_HAS_CUFILE_HEADER 1
#endif

namespace cairn::cuda {

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
              fmt::format("{}={}: \"auto\", \"on\" or \"off\" is needed", kModeVariable, mode));
}

/// The functions that are called, and what the driver can. Never closed: cuFile has threads of its
/// own, and cleans up when the process ends.
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
             ? fmt::format("CUDA's error {}", static_cast<int>(status.cu_err))
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
  // It may be open already, for another user in this process.
  const CUfileError_t opened = library.DriverOpen();
  if (opened.err != CU_FILE_SUCCESS && opened.err != CU_FILE_DRIVER_ALREADY_OPEN) {
    return Unusable("cuFile's driver does not open: " + Describe(opened));
  }
  const CUfileError_t asked = library.DriverGetProperties(&library.properties);
  if (asked.err != CU_FILE_SUCCESS) {
    return Unusable("cuFile does not say what its driver can: " + Describe(asked));
  }
  return library;
}

/// Opened once; what was missing then is missing until the process ends.
Result<const Library*> OpenLibrary() {
  static std::mutex mutex;
  static const Result<Library>* opened = nullptr;  // never freed: files may end after statics
  const std::lock_guard lock(mutex);
  if (opened == nullptr) opened = new Result<Library>(LoadLibrary());
  CAIRN_TRY(*opened);
  if ((*opened)->process != ::getpid()) {
    return Unusable("cuFile cannot be used in a child of fork");
  }
  return &**opened;
}

/// Whether the driver reaches files like this one without going through host memory. cuFile itself
/// does not tell, and copies where it cannot.
Result<void> CheckFileSystem(const Library& library, int fd) {
  struct statfs status{};
  if (::fstatfs(fd, &status) != 0) return Unusable("the file system does not tell its type");
  struct Kind {
    uint64_t magic;
    const char* name;
    unsigned flags;  // of CUfileDriverStatusFlags_t, any of which serves it
  };
  constexpr unsigned kBlockDevices =
      1u << CU_FILE_NVME_SUPPORTED | 1u << CU_FILE_NVMEOF_SUPPORTED | 1u << CU_FILE_SCSI_SUPPORTED |
      1u << CU_FILE_SCALEFLUX_CSD_SUPPORTED | 1u << CU_FILE_NVMESH_SUPPORTED |
      1u << CU_FILE_NVME_P2P_SUPPORTED;
  constexpr std::array kKinds = {Kind{0xEF53, "ext4", kBlockDevices},
                                 Kind{0x58465342, "xfs", kBlockDevices},
                                 Kind{0x0BD00BD0, "Lustre", 1u << CU_FILE_LUSTRE_SUPPORTED},
                                 Kind{0x6969, "NFS", 1u << CU_FILE_NFS_SUPPORTED},
                                 Kind{0x47504653, "GPFS", 1u << CU_FILE_GPFS_SUPPORTED},
                                 Kind{0x19830326, "BeeGFS", 1u << CU_FILE_BEEGFS_SUPPORTED}};
  const auto magic = static_cast<uint32_t>(status.f_type);
  const auto* const kind = std::ranges::find(kKinds, uint64_t{magic}, &Kind::magic);
  if (kind == kKinds.end()) {
    return Unusable(
        fmt::format("the file system (type 0x{:x}) is none of those that cuFile is "
                    "known to serve; {}=on lets it try",
                    magic, kModeVariable));
  }
  if ((library.properties.nvfs.dstatusflags & kind->flags) == 0) {
    return Unusable(
        fmt::format("cuFile's driver does not serve {} here (is the kernel module "
                    "nvidia-fs loaded?)",
                    kind->name));
  }
  return {};
}

/// A file registered with cuFile.
class File final : public core::DeviceFile {
 public:
  File(const Library* library, CUfileHandle_t handle) : library_(library), handle_(handle) {}
  ~File() override { library_->HandleDeregister(handle_); }
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
  /// `at_end`: the error where nothing more is taken or given.
  template <typename Call>
  Result<void> Transfer(int device, uint64_t length_bytes, uint64_t offset_bytes, const char* what,
                        int at_end, const Call& call) {
    const internal::DeviceScope scope(device);
    for (uint64_t done = 0; done < length_bytes;) {
      errno = 0;
      const ssize_t count =
          call(done, length_bytes - done, static_cast<off_t>(offset_bytes + done));
      const int error_number = errno;
      if (count > 0) {
        done += static_cast<uint64_t>(count);
        continue;
      }
      if (count == -1 || count == 0) {
        const int number = count == 0 || error_number == 0 ? at_end : error_number;
        return Fail(SystemError(number, what).WithOffset(offset_bytes + done));
      }
      const auto status = static_cast<CUfileOpError>(-count);
      return Fail(Error{.code = ErrorCode::kUnavailable,
                        .message = fmt::format("{}: {} ({})", what, cufileop_status_error(status),
                                               static_cast<int>(status)),
                        .offset_bytes = offset_bytes + done});
    }
    return {};
  }

  const Library* const library_;  // of the process
  const CUfileHandle_t handle_;
};

Result<std::unique_ptr<File>> Register(const Library& library, int fd) {
  CUfileDescr_t descriptor{};
  descriptor.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  descriptor.handle.fd = fd;
  CUfileHandle_t handle = nullptr;
  const CUfileError_t status = library.HandleRegister(&handle, &descriptor);
  if (status.err != CU_FILE_SUCCESS) {
    return Unusable("cuFile does not take the file: " + Describe(status));
  }
  return std::make_unique<File>(&library, handle);
}

/// What is known of file systems that were to be written, by device number.
Result<void> TryOutOnce(core::DeviceBackend& backend, int device, int fd,
                        const std::string& directory) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return Fail(SystemError(errno, "cannot look at", directory));
  static std::mutex mutex;
  static std::map<dev_t, Result<void>> results;
  const std::lock_guard lock(mutex);  // others wait for the answer
  if (const auto found = results.find(status.st_dev); found != results.end()) return found->second;
  const auto open = [](int trial_fd) -> Result<std::unique_ptr<core::DeviceFile>> {
    CAIRN_TRY_ASSIGN(const Library* const library, OpenLibrary());
    return Register(*library, trial_fd);
  };
  const auto result = internal::TryOutFile(backend, device, directory, open);
  // A full disk or device may have room again.
  const bool is_final = result || result.error().code == ErrorCode::kFailedPrecondition ||
                        result.error().code == ErrorCode::kDataLoss;
  if (is_final) results.emplace(status.st_dev, result);
  return result;
}

Result<const Library*> FindLibraryFor(int fd) {
  CAIRN_TRY_ASSIGN(const Mode mode, ModeFromEnvironment());
  if (mode == Mode::kOff) return Unusable(fmt::format("{}=off", kModeVariable));
  CAIRN_TRY_ASSIGN(const Library* const library, OpenLibrary());
  if (mode == Mode::kAuto) CAIRN_TRY(CheckFileSystem(*library, fd));
  return library;
}

}  // namespace

Result<std::unique_ptr<core::DeviceFile>> internal::OpenCuFile(core::DeviceBackend& backend,
                                                               int device, int fd,
                                                               const std::string& path,
                                                               FileUse use) {
  CAIRN_TRY_ASSIGN(const Library* const library, FindLibraryFor(fd));
  if (use == FileUse::kWrite) {
    const size_t slash = path.rfind('/');
    CAIRN_TRY(TryOutOnce(backend, device, fd, slash == path.npos ? "." : path.substr(0, slash)));
  }
  return Register(*library, fd);
}

Result<void> FindGpuDirectStorage(const std::string& directory) {
  CAIRN_TRY_ASSIGN(core::DeviceBackend* const backend, FindBackend());
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Fail(SystemError(errno, "cannot open the directory", directory));
  auto found = [&]() -> Result<void> {
    CAIRN_TRY(FindLibraryFor(fd));
    int device = 0;
    CAIRN_TRY(internal::Check(cudaGetDevice(&device), "asking for the GPU"));
    return TryOutOnce(*backend, device, fd, directory);
  }();
  ::close(fd);
  return found;
}

#else

namespace {
std::unexpected<Error> Missing() {
  return Fail(ErrorCode::kUnimplemented, "this build was made without cufile.h");
}
}  // namespace

Result<std::unique_ptr<core::DeviceFile>> internal::OpenCuFile(core::DeviceBackend&, int, int,
                                                               const std::string&,
                                                               core::DeviceBackend::FileUse) {
  return Missing();
}
Result<void> FindGpuDirectStorage(const std::string&) { return Missing(); }

#endif

}  // namespace cairn::cuda
