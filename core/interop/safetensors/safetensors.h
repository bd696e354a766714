#pragma once
/// The safetensors file format (https://github.com/huggingface/safetensors): reading files as
/// hostile input, writing them durably, and moving whole steps in and out.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint_store.h"
#include "kv/mapping.h"

namespace cairn::core {

namespace internal {
class DurableFile;
}

/// The format's own bound.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// "F32", ...; nothing for dtypes that the format has no name for.
std::optional<std::string_view> SafetensorsName(DType dtype);
std::optional<DType> FindSafetensorsDType(std::string_view name);

/// One tensor of a file. "F4" counts 4-bit elements: its last dimension is halved here, as torch
/// counts float4_e2m1fn_x2.
struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kUnknown;
  Shape shape;
  std::span<const std::byte> bytes;  // row-major, in the mapping; any alignment
};

/// A file mapped into memory. Ownership: owns the mapping, which `bytes` of all tensors point into.
/// Threads: immutable. The file must not be truncated while it is used.
class SafetensorsFile {
 public:
  /// Checks the whole header: nothing in it can lead out of the file, overlap, or leave holes.
  /// kDataLoss: it is no safetensors file or a damaged one. kUnimplemented: a dtype that this build
  /// does not know. kNotFound, kUnavailable: it cannot be opened.
  static Result<SafetensorsFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  /// In the order of their bytes.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  std::string path_;
  std::shared_ptr<const kv::Mapping> mapping_;  // shared by copies of this object
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// The tensors of all files as one flat state dict, keyed by their names; they must outlive its
/// use. Two tensors of one name are refused when it is saved.
StateDict SafetensorsState(std::span<const SafetensorsFile> files);

/// Writes one file: a temporary beside it, synced, renamed, its directory synced. What is not
/// finished disappears. Threads: one at a time.
class SafetensorsWriter {
 public:
  struct Entry {
    std::string name;
    DType dtype = DType::kUnknown;
    Shape shape;
  };
  /// kInvalidArgument: a dtype the format cannot say, or two entries of one name; names the key.
  static Result<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::span<const Entry> entries,
      const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// The next bytes of the entries, one after another in their order.
  Result<void> Append(std::span<const std::byte> bytes);
  /// kInvalidArgument: not all bytes were given. After success the file is durable under its name.
  Result<void> Finish();

 private:
  SafetensorsWriter();
  std::unique_ptr<internal::DurableFile> file_;
  uint64_t left_bytes_ = 0;
};

struct ExportOptions {
  uint64_t max_shard_bytes =
      5'000'000'000;  // a larger selection becomes several files and an index
  Progress progress;
};
struct ExportReport {
  std::vector<std::string> files;  // written, the index included
  uint64_t tensors = 0;
  uint64_t bytes = 0;            // of tensors; those that share memory counted each
  uint64_t values_left_out = 0;  // the format holds tensors only
  double seconds = 0;
};

/// Writes the tensors of `contents` (from List) as safetensors. `out` is a file ending in
/// ".safetensors" or a directory, which is made and gets "model.safetensors". With more than one
/// shard: model-00001-of-00003.safetensors, ..., and model.safetensors.index.json.
/// Tensors that share memory are written in full. kInvalidArgument: a dtype that the format cannot
/// say, before anything is written.
Result<ExportReport> ExportSafetensors(const CheckpointStore& store, const Contents& contents,
                                       const std::string& out, const ExportOptions& options = {});

}  // namespace cairn::core
