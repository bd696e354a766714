// Copies the pieces of each converted tensor from their views to a mapped temporary file.

#include "core/convert/converted_state.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "core/convert/internal/block_scale.h"
#include "core/convert/internal/renamed_tree.h"
#include "core/tensor/element_cast.h"
#include "core/tensor/internal/mapped_region.h"
#include "core/tensor/internal/memory_span.h"
#include "core/tensor/strided_copy.h"
#include "kv/base/div.h"

namespace cairn::core {
namespace {

constexpr uint64_t kAlignBytes = 4096;

// A file without a name, mapped completely.
class Scratch {
 public:
  static Result<std::shared_ptr<Scratch>> Make(uint64_t length_bytes) {
    auto scratch = std::make_shared<Scratch>();
    std::string name = (std::filesystem::temp_directory_path() / "cairn-XXXXXX").string();
    const int file = mkstemp(name.data());
    if (file < 0) return Fail(SystemError(errno, "creating a temporary file", name));
    unlink(name.c_str());
    // Reserves the space: a full disk must not end the process when a page is written.
    const int failed = posix_fallocate(file, 0, static_cast<off_t>(length_bytes));
    void* const memory =
        failed == 0 ? mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                    : MAP_FAILED;
    const int error_number = failed != 0 ? failed : errno;
    close(file);
    if (memory == MAP_FAILED) {
      return Fail(SystemError(error_number, "allocating a temporary file", name));
    }
    scratch->memory_ = static_cast<std::byte*>(memory);
    scratch->length_bytes_ = length_bytes;
    return scratch;
  }
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (memory_ != nullptr) munmap(memory_, length_bytes_);
  }

  std::byte* memory() const { return memory_; }

 private:
  std::byte* memory_ = nullptr;
  uint64_t length_bytes_ = 0;
};

class StateConversion {
 public:
  explicit StateConversion(const StateDict& state) : state_(state) {}

  Result<ConvertedState> Run(const ConversionRules& rules, const KeyCasts& casts) {
    CAIRN_TRY(FindSources());
    CAIRN_TRY_ASSIGN(const std::vector<ConvertedKey> keys, ConvertKeys(sources_, rules, casts));
    ConvertedState made;
    CAIRN_TRY_ASSIGN(made.state.tree, internal::RenamedTree(state_.tree, keys));
    CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, FlattenTree(made.state.tree));
    std::map<std::string_view, const ConvertedKey*> by_name;
    uint64_t scratch_bytes = 0;
    for (const ConvertedKey& key : keys) {
      by_name[key.fqn] = &key;
      if (!IsView(key)) scratch_bytes += SlotBytes(key);
    }
    std::byte* next = nullptr;
    if (scratch_bytes > 0) {
      CAIRN_TRY_ASSIGN(const auto scratch, Scratch::Make(scratch_bytes));
      next = scratch->memory();
      made.scratch = scratch;
    }
    for (const Leaf& leaf : leaves) {
      const ConvertedKey& key = *by_name.at(leaf.fqn);
      if (!key.is_tensor) {
        made.state.slot.push_back(static_cast<uint32_t>(made.state.values.size()));
        made.state.values.push_back(state_.values[state_.slot[key.source]]);
        continue;
      }
      made.state.slot.push_back(static_cast<uint32_t>(made.state.tensors.size()));
      if (IsView(key)) {
        made.state.tensors.push_back(ViewOf(key.source));
        continue;
      }
      CAIRN_TRY(Fill(key, next));
      made.state.tensors.push_back(
          {.dtype = key.dtype, .shape = key.shape, .strides = {}, .data = next});
      next += SlotBytes(key);
    }
    return made;
  }

 private:
  Result<void> FindSources() {
    CAIRN_TRY_ASSIGN(const std::vector<Leaf> leaves, state_.Leaves());
    if (!state_.shardings.empty()) {
      return Fail(ErrorCode::kInvalidArgument, "sharded tensors cannot be converted on a save");
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      SourceKey source{.fqn = leaves[i].fqn, .shape = {}};
      source.is_tensor = IsTensor(state_.tree.nodes[leaves[i].node].kind);
      if (source.is_tensor) {
        source.dtype = ViewOf(i).dtype;
        source.shape = ViewOf(i).shape;
      }
      sources_.push_back(std::move(source));
    }
    return {};
  }

  const TensorView& ViewOf(size_t source) const { return state_.tensors[state_.slot[source]]; }

  bool IsView(const ConvertedKey& key) const {
    return !key.is_tensor || (key.is_whole && key.dtype == sources_[key.source].dtype);
  }

  // Every tensor begins on a page, and has memory even without elements.
  static uint64_t SlotBytes(const ConvertedKey& key) {
    uint64_t bytes = schema::ElementBytes(key.dtype);
    for (const uint64_t size : key.shape) bytes *= size;
    return RoundUp(std::max<uint64_t>(bytes, 1), kAlignBytes);
  }

  Result<void> Fill(const ConvertedKey& key, std::byte* memory) const {
    const TensorTarget target{key.dtype, key.shape, RowMajorStrides(key.shape), memory};
    for (const SourcePiece& piece : key.pieces) {
      const TensorView& view = ViewOf(piece.source);
      const uint64_t element_bytes = schema::ElementBytes(view.dtype);
      CAIRN_TRY_ASSIGN(const internal::MemorySpan span, internal::SpanOf(view));
      const internal::RegionElement element(element_bytes, FindElementCast(view.dtype, key.dtype),
                                            schema::ElementBytes(key.dtype));
      const auto strides = internal::InBytes(
          view.strides.empty() ? RowMajorStrides(view.shape) : view.strides, element_bytes);
      internal::MappedRegion(piece.map, strides, 0, element, target)
          .CopyFrom({view.data, span.end - span.begin}, 0);
      if (piece.scale) {
        const std::vector<float> factors = FactorsOf(*piece.scale);
        internal::MultiplyBlocks({piece.map, target, *piece.scale, view.shape}, factors);
      }
    }
    return {};
  }

  std::vector<float> FactorsOf(const SourcePiece::BlockScale& scale) const {
    const TensorView& view = ViewOf(scale.source);
    std::vector<float> factors(view.shape[0] * view.shape[1]);
    auto* const bytes = reinterpret_cast<std::byte*>(factors.data());
    CopyTensor(view, {view.dtype, view.shape, {}, bytes});
    return factors;
  }

  const StateDict& state_;
  std::vector<SourceKey> sources_;  // the leaves, in tree order
};

}  // namespace

Result<ConvertedState> ConvertedState::Make(const StateDict& state, const ConversionRules& rules,
                                            const KeyCasts& casts) {
  return StateConversion(state).Run(rules, casts);
}

}  // namespace cairn::core
