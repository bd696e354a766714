// safetensors files: opening, and writing one durably.

#include "core/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/internal/durable_file.h"
#include "core/internal/safetensors_header.h"

namespace cairn::core {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

Result<std::shared_ptr<const kv::Mapping>> MapFile(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return Fail(SystemError(errno, "cannot open the file", path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    return Fail(SystemError(errno, "cannot examine the file", path));
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size < 8) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "it is no safetensors file: too short, or no file at all",
                      .file = path});
  }
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return Fail(SystemError(errno, "cannot map the file", path));
  return std::make_shared<const kv::Mapping>(
      std::span(static_cast<const std::byte*>(memory), size));
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  CAIRN_TRY_ASSIGN(file.mapping_, MapFile(path));
  const std::span<const std::byte> bytes = file.mapping_->bytes();
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<uint8_t>(bytes[i]);
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > bytes.size() - 8) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = fmt::format("it is no safetensors file: a header of {} bytes in a "
                                             "file of {}",
                                             header_bytes, bytes.size()),
                      .file = path});
  }
  const auto text = bytes.subspan(8, header_bytes);
  const auto data = bytes.subspan(8 + header_bytes);
  auto header = internal::ParseSafetensorsHeader(
      {reinterpret_cast<const char*>(text.data()), text.size()}, data.size());
  if (!header) return Fail(std::move(header).error().WithFile(path));
  file.metadata_ = std::move(header->metadata);
  for (auto& tensor : header->tensors) {
    file.tensors_.push_back(
        {.name = std::move(tensor.name),
         .dtype = tensor.dtype,
         .shape = std::move(tensor.shape),
         .bytes = data.subspan(tensor.begin_bytes, tensor.end_bytes - tensor.begin_bytes)});
  }
  return file;
}

StateDict SafetensorsState(std::span<const SafetensorsFile> files) {
  StateDict state;
  auto root = state.root();
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsTensor& tensor : file.tensors()) {
      root.Tensor(tensor.name, {.dtype = tensor.dtype,
                                .shape = tensor.shape,
                                .strides = {},
                                .data = tensor.bytes.data()});
    }
  }
  return state;
}

SafetensorsWriter::SafetensorsWriter() = default;
SafetensorsWriter::~SafetensorsWriter() = default;

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::span<const Entry> entries,
    const std::map<std::string, std::string>& metadata) {
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter());
  CAIRN_TRY_ASSIGN(const std::string header,
                   internal::FormatSafetensorsHeader(entries, metadata, &writer->left_bytes_));
  CAIRN_TRY_ASSIGN(writer->file_, internal::DurableFile::Create(path));
  std::array<std::byte, 8> length;
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<std::byte>(header.size() >> (8 * i));
  CAIRN_TRY(writer->file_->Write(length));
  CAIRN_TRY(writer->file_->Write(std::as_bytes(std::span(header))));
  return writer;
}

Result<void> SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > left_bytes_) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} bytes given where the entries have {} left", bytes.size(), left_bytes_));
  }
  left_bytes_ -= bytes.size();
  return file_->Write(bytes);
}

Result<void> SafetensorsWriter::Finish() {
  if (left_bytes_ != 0) {
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("{} bytes of tensors are missing", left_bytes_));
  }
  return file_->Finish();
}

}  // namespace cairn::core
