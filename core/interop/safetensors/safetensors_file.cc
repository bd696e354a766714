#include "core/interop/safetensors/safetensors_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "core/interop/safetensors/internal/safetensors_header.h"
#include "kv/io/file_descriptor.h"
#include "schema/little_endian.h"

namespace cairn::core {
namespace {

/// Maps the complete file read-only; the mapping of an empty file is empty. The file must not be
/// truncated while it is mapped: touching bytes that no longer exist ends the process
/// (kv::Mapping::Populate returns an error instead). kNotFound, kUnavailable: the file cannot be
/// opened or mapped. kDataLoss: it is not a regular file.
Result<std::shared_ptr<const kv::Mapping>> MapFile(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  const kv::FileDescriptor file(kv::RetryInterrupted(
      [&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!file.is_open()) return Fail(SystemError(errno, "cannot open the file", path));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) {
    return Fail(SystemError(errno, "cannot examine the file", path));
  }
  if (!S_ISREG(status.st_mode)) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .hint = Hint::kStated,
                      .message = "it is not a regular file",
                      .file = path});
  }
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size == 0) return std::make_shared<const kv::Mapping>(std::span<const std::byte>());
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
  auto read = file.ReadHeader();
  if (read) return file;
  const std::span<const std::byte> bytes = file.mapping_->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (std::string what = DescribeWrongFile(text.substr(0, kWrongFileHeadBytes)); !what.empty()) {
    return Fail(Error{.code = ErrorCode::kInvalidArgument,
                      .hint = Hint::kStated,
                      .message = std::move(what),
                      .file = path});
  }
  return Fail(std::move(read).error().WithFile(path).WithHint(Hint::kFetchFile));
}

Result<void> SafetensorsFile::ReadHeader() {
  constexpr uint64_t kLengthBytes = 8;  // size of the field with the header's length
  const std::span<const std::byte> file = mapping_->bytes();
  if (file.size() < kLengthBytes) {
    return Fail(ErrorCode::kDataLoss, "it is not a safetensors file: it is too short");
  }
  const auto header_bytes = schema::GetLittleEndian<uint64_t>(file);
  if (header_bytes > kMaxSafetensorsHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    return Fail(ErrorCode::kDataLoss,
                fmt::format("it is not a safetensors file: a header of {} bytes in a file of {}",
                            header_bytes, file.size()));
  }
  const auto text = file.subspan(kLengthBytes, header_bytes);
  const auto data = file.subspan(kLengthBytes + header_bytes);
  const std::string_view json(reinterpret_cast<const char*>(text.data()), text.size());
  CAIRN_TRY_ASSIGN(internal::SafetensorsHeader header,
                   internal::DecodeSafetensorsHeader(json, data.size()));
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.tensors.size());
  for (auto& tensor : header.tensors) {
    tensors_.push_back(
        {.name = std::move(tensor.name),
         .dtype = tensor.dtype,
         .shape = std::move(tensor.shape),
         .bytes = data.subspan(tensor.begin_bytes, tensor.end_bytes - tensor.begin_bytes)});
  }
  return {};
}

StateDict SafetensorsState(std::span<const SafetensorsFile> files, std::string_view prefix) {
  StateDict state;
  auto root = prefix.empty() ? state.root() : state.root().Map(prefix);
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

}  // namespace cairn::core
