// The header of a file states the length of every tensor, so the positions and values of changed
// elements are first collected in temporary files, and then copied.

#include "core/interop/safetensors/safetensors_update.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "core/base/internal/progress_meter.h"
#include "core/checkpoint_store.h"
#include "core/inspect/compare.h"
#include "core/interop/safetensors/safetensors_writer.h"
#include "core/tensor/chunk_grid.h"
#include "core/upkeep/payload_reader.h"
#include "kv/io/file_descriptor.h"
#include "schema/dtype.h"

namespace cairn::core {
namespace {

constexpr uint64_t kPartBytes = 8 << 20;  // length of the part of each step that is read at once

/// Bytes that are appended, and read again. The file has no name.
class Spill {
 public:
  static Result<std::unique_ptr<Spill>> Create(const std::string& beside) {
    std::string name = beside + ".XXXXXX";
    kv::FileDescriptor file(::mkostemp(name.data(), O_CLOEXEC));
    if (file.get() < 0) return Fail(SystemError(errno, "cannot create a temporary file", name));
    ::unlink(name.c_str());
    return std::unique_ptr<Spill>(new Spill(std::move(file), beside));
  }
  uint64_t size_bytes() const { return size_bytes_; }
  void Truncate(uint64_t size_bytes) { size_bytes_ = size_bytes; }

  Result<void> Append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count =
          ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_bytes_));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        return Fail(SystemError(errno, "cannot write a temporary file for the export", path_));
      }
      size_bytes_ += static_cast<uint64_t>(count);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
    return {};
  }

  Result<void> CopyTo(uint64_t begin, uint64_t length, SafetensorsWriter& writer) const {
    std::vector<std::byte> buffer(std::min<uint64_t>(length, 1 << 20));
    while (length > 0) {
      const size_t wanted = std::min<uint64_t>(length, buffer.size());
      const ssize_t count = ::pread(file_.get(), buffer.data(), wanted, static_cast<off_t>(begin));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        return Fail(SystemError(count == 0 ? EIO : errno, "cannot read a temporary file", path_));
      }
      CAIRN_TRY(writer.Append(std::span(buffer).first(static_cast<size_t>(count))));
      begin += static_cast<uint64_t>(count);
      length -= static_cast<uint64_t>(count);
    }
    return {};
  }

 private:
  Spill(kv::FileDescriptor file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  kv::FileDescriptor file_;
  std::string path_;  // path of the export, for errors
  uint64_t size_bytes_ = 0;
};

/// A tensor of the file: part of a spill, or a tensor of the step.
struct Item {
  SafetensorsEntry entry;
  const Spill* spill = nullptr;
  uint64_t begin = 0;
  uint64_t length = 0;
  const TensorInfo* tensor = nullptr;
};

class UpdateExport {
 public:
  UpdateExport(const CheckpointStore& store, const kv::StepInfo& since, const Contents& contents,
               const std::string& out, const Progress& progress)
      : store_(store), since_(since), contents_(contents), out_(out), progress_(progress) {}

  /// Chooses the tensors, and collects the changed elements of sparse ones.
  Result<void> Collect(const Diff& diff, const Contents& before, bool sparse) {
    std::map<std::string_view, KeyChange::Kind> changed;
    for (const KeyChange& change : diff.changes) changed[change.fqn] = change.kind;
    std::set<std::string_view> names;  // names of the tensors of the newer step
    for (const TensorInfo& tensor : contents_.tensors) {
      if (!tensor.hidden) names.insert(tensor.fqn);
    }
    // Also tensors that have become plain values.
    for (const TensorInfo& tensor : before.tensors) {
      if (!tensor.hidden && !names.contains(tensor.fqn)) removed_.push_back(tensor.fqn);
    }
    std::vector<const TensorInfo*> tensors;
    uint64_t bytes = 0;
    for (const TensorInfo& tensor : contents_.tensors) {
      if (tensor.hidden || !changed.contains(tensor.fqn)) continue;
      CAIRN_TRY(CheckSafetensorsDType(tensor.fqn, tensor.dtype));
      tensors.push_back(&tensor);
      bytes += tensor.nbytes;
    }
    internal::ProgressMeter meter(progress_, bytes);
    if (sparse) {
      CAIRN_TRY_ASSIGN(positions_, Spill::Create(out_));
      CAIRN_TRY_ASSIGN(values_, Spill::Create(out_));
    }
    for (const TensorInfo* const tensor : tensors) {
      bool is_sparse = false;
      const bool has_free_names =
          !names.contains(tensor->fqn + ".indices") && !names.contains(tensor->fqn + ".values");
      const bool was_tensor =
          std::ranges::binary_search(before.tensors, tensor->fqn, {}, &TensorInfo::fqn);
      if (sparse && has_free_names && was_tensor) {
        CAIRN_TRY_ASSIGN(is_sparse, CollectChanges(*tensor, meter));
      }
      if (is_sparse) continue;
      items_.push_back({.entry = {tensor->fqn, tensor->dtype, tensor->shape}, .tensor = tensor});
      ++report_.complete_tensors;
      report_.bytes += tensor->nbytes;
    }
    return {};
  }

  Result<SafetensorsUpdateReport> Write() {
    // All tensors are aligned if wide elements are first.
    std::ranges::stable_sort(items_, std::ranges::greater{}, [](const Item& item) {
      return schema::ElementBytes(item.entry.dtype);
    });
    std::vector<SafetensorsEntry> entries;
    for (const Item& item : items_) entries.push_back(item.entry);
    const std::map<std::string, std::string> metadata = {
        {"format", "pt"},
        {"cairn.since", fmt::to_string(since_.step)},
        {"cairn.step", fmt::to_string(contents_.step.step)},
        {"cairn.removed", nlohmann::json(removed_).dump()},
        {"cairn.sparse", sparse_.dump()}};
    CAIRN_TRY_ASSIGN(const auto writer, SafetensorsWriter::Create(out_, entries, metadata));
    for (const Item& item : items_) {
      if (item.spill != nullptr) {
        CAIRN_TRY(item.spill->CopyTo(item.begin, item.length, *writer));
        continue;
      }
      CAIRN_TRY(ReadRowMajor(LoaderOf(store_, contents_.step), {item.tensor, 1},
                             [&](size_t, uint64_t, std::span<const std::byte> bytes) {
                               return writer->Append(bytes);
                             }));
    }
    CAIRN_TRY(writer->Finish());
    report_.removed_keys = removed_.size();
    return report_;
  }

 private:
  /// Adds the elements that changed. Returns false if the tensor is to be written completely.
  Result<bool> CollectChanges(const TensorInfo& tensor, internal::ProgressMeter& meter) {
    CAIRN_TRY_ASSIGN(const TensorInfo before, store_.FindTensor(since_, tensor.fqn));
    const uint64_t width = schema::ElementBytes(tensor.dtype);
    // Two values per element have no position each.
    if (before.dtype != tensor.dtype || before.shape != tensor.shape ||
        tensor.dtype == DType::kFloat4E2M1FNx2) {
      return false;
    }
    const bool is_wide = tensor.nbytes / width > INT32_MAX;
    const uint64_t begin = positions_->size_bytes(), values_begin = values_->size_bytes();
    CAIRN_TRY_ASSIGN(const auto grid, ChunkGrid::Make(tensor.dtype, tensor.shape, kPartBytes));
    for (uint64_t part = 0; part < grid.chunk_count(); ++part) {
      CAIRN_TRY(AddPart(tensor, grid.chunk(part), grid.offset_bytes(part) / width, is_wide));
      CAIRN_TRY(meter.Add(grid.length_bytes(part)));
      const uint64_t written =
          positions_->size_bytes() - begin + values_->size_bytes() - values_begin;
      if (written < tensor.nbytes) continue;
      positions_->Truncate(begin);
      values_->Truncate(values_begin);
      return false;
    }
    const uint64_t count = (values_->size_bytes() - values_begin) / width;
    const auto add = [&](const char* name, DType dtype, const Spill& spill, uint64_t from) {
      items_.push_back({.entry = {tensor.fqn + name, dtype, {count}},
                        .spill = &spill,
                        .begin = from,
                        .length = spill.size_bytes() - from});
      report_.bytes += items_.back().length;
    };
    add(".indices", is_wide ? DType::kInt64 : DType::kInt32, *positions_, begin);
    add(".values", tensor.dtype, *values_, values_begin);
    sparse_[tensor.fqn] = tensor.shape;
    ++report_.sparse_tensors;
    report_.changed_elements += count;
    return true;
  }

  Result<void> AddPart(const TensorInfo& tensor, const Box& box, uint64_t first_element,
                       bool is_wide) {
    const uint64_t width = schema::ElementBytes(tensor.dtype);
    CAIRN_TRY_ASSIGN(const uint64_t bytes, TensorBytes(tensor.dtype, box.sizes));
    before_.resize(bytes);
    after_.resize(bytes);
    const auto old = RowMajorRequest(tensor.fqn, tensor.dtype, box, before_.data());
    const auto now = RowMajorRequest(tensor.fqn, tensor.dtype, box, after_.data());
    CAIRN_TRY(store_.Load(since_, {&old, 1}));
    CAIRN_TRY(store_.Load(contents_.step, {&now, 1}));
    new_positions_.clear();
    new_values_.clear();
    for (uint64_t i = 0; i < bytes / width; ++i) {
      const std::byte* const value = after_.data() + i * width;
      if (std::memcmp(before_.data() + i * width, value, width) == 0) continue;
      new_values_.insert(new_values_.end(), value, value + width);
      const uint64_t position = first_element + i;  // little-endian, as the values are
      const auto* const digits = reinterpret_cast<const std::byte*>(&position);
      new_positions_.insert(new_positions_.end(), digits, digits + (is_wide ? 8 : 4));
    }
    CAIRN_TRY(positions_->Append(new_positions_));
    return values_->Append(new_values_);
  }

  const CheckpointStore& store_;
  const kv::StepInfo& since_;
  const Contents& contents_;
  const std::string& out_;
  const Progress& progress_;
  std::unique_ptr<Spill> positions_;
  std::unique_ptr<Spill> values_;
  std::vector<Item> items_;
  std::vector<std::string> removed_;
  nlohmann::json sparse_ = nlohmann::json::object();  // shapes by FQN
  SafetensorsUpdateReport report_;
  std::vector<std::byte> before_, after_, new_positions_, new_values_;
};

}  // namespace

Result<SafetensorsUpdateReport> ExportSafetensorsUpdate(const CheckpointStore& store,
                                                        uint64_t since, const Contents& contents,
                                                        const std::string& out,
                                                        const SafetensorsUpdateOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(const auto snapshot, store.kv().Latest());
  CAIRN_TRY_ASSIGN(const kv::StepInfo before, snapshot->FindStep(since));
  CAIRN_TRY_ASSIGN(const Diff diff,
                   CompareSteps(store.kv(), since, contents.step.step, options.patterns));
  UpdateExport update(store, before, contents, out, options.progress);
  CAIRN_TRY_ASSIGN(const Contents old, store.List(since, options.patterns));
  CAIRN_TRY(update.Collect(diff, old, options.sparse));
  CAIRN_TRY_ASSIGN(SafetensorsUpdateReport report, update.Write());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace cairn::core
