// Records of tensors, chunks, trees and values, and patterns of keys.

#include <algorithm>

#include "core/state_dict/internal/stored_tree.h"
#include "core/state_dict/key_name.h"
#include "core/state_dict/key_pattern.h"
#include "core/state_dict/state_dict.h"
#include "core/state_dict/value.h"
#include "core/step/application_records.h"
#include "core/step/internal/tensor_records.h"
#include "kv/base/key.h"
#include "kv/root/internal/kv_records.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace core;            // NOLINT(google-build-using-namespace): the code under test
using namespace core::internal;  // NOLINT(google-build-using-namespace): the code under test

void FuzzTensor(std::span<const std::byte> record) {
  const auto decode = [](std::span<const std::byte> bytes) { return DecodeTensor("w", bytes); };
  if (const auto tensor = decode(record)) {
    const auto bytes = TensorBytes(tensor->dtype, tensor->shape);
    CAIRN_FUZZ_CHECK(bytes && *bytes == tensor->nbytes);
  }
  CheckRoundTrip(decode, &EncodeTensor, record);
}

void FuzzChunk(Input input) {
  const size_t tensor_bytes = input.Byte();
  const auto taken = input.Bytes(tensor_bytes);
  const std::vector<std::byte> tensor_record(taken.begin(), taken.end());
  const std::string key(input.Text(input.Byte()));
  const std::vector<std::byte> record = input.CopyRest();
  const auto chunk = internal::DecodeChunk(key, record);
  if (!chunk) return UseError(chunk.error());
  const auto encoded = kv::internal::EncodeChunk(chunk->info.entry());
  const auto again = internal::DecodeChunk(key, encoded);
  CAIRN_FUZZ_CHECK(again && again->info.box == chunk->info.box);
  CAIRN_FUZZ_CHECK(again->info.stored() == chunk->info.stored());
  const auto tensor = DecodeTensor(chunk->fqn, tensor_record);
  if (!tensor) return UseError(tensor.error());
  if (const auto checked = CheckChunk(EntryOf(*tensor), chunk->info); !checked) {
    return UseError(checked.error());
  }
  CAIRN_FUZZ_CHECK(chunk->info.length_bytes() <= tensor->nbytes);
  const auto offset = ContiguousOffsetBytes(tensor->dtype, tensor->shape, chunk->info.box);
  if (offset) CAIRN_FUZZ_CHECK(*offset <= tensor->nbytes - chunk->info.length_bytes());
}

/// What is selected in a record is what pruning the complete tree leaves; `leaves` are those of
/// `tree`, and `keep_bits` choose some of their FQNs.
void CheckSelection(const std::vector<std::byte>& record, const StateTree& tree,
                    std::span<const Leaf> leaves, uint64_t keep_bits) {
  LiteralKeys literals;
  for (size_t i = 0; i < leaves.size(); ++i) {
    if ((keep_bits >> (i % 64) & 1) != 0 && !leaves[i].fqn.empty()) literals.insert(leaves[i].fqn);
  }
  if (literals.empty()) return;
  std::vector<bool> keep;
  for (const Leaf& leaf : leaves) {
    keep.push_back(std::ranges::any_of(literals, [&](const std::string& literal) {
      return leaf.fqn == literal || leaf.fqn.starts_with(literal + '.');
    }));
  }
  const auto stored = StoredTree::Open(record);
  CAIRN_FUZZ_CHECK(stored.has_value());
  CAIRN_FUZZ_CHECK((*stored)->Select(literals) == PruneTree(tree, keep));
}

/// A record whose tree is refused may be opened nevertheless: it has errors elsewhere.
void SelectInAny(const std::vector<std::byte>& record) {
  const auto stored = StoredTree::Open(record);
  if (!stored) return UseError(stored.error());
  CAIRN_FUZZ_CHECK((*stored)->Select({"a", "b.c", "list\\.1"}).nodes.size() > 0);
}

void FuzzTree(Input input) {
  const auto keep_bits = input.Number<uint64_t>();
  const std::vector<std::byte> record = input.CopyRest();
  Result<StateTree> tree;
  {
    // A node needs at least 10 bytes of a record and 48 bytes of memory.
    const MemoryLimit limit(record, 64);
    tree = DecodeTree(record);
  }
  SelectInAny(record);
  if (!tree) return UseError(tree.error());
  const auto leaves = FlattenTree(*tree);
  if (!leaves) return UseError(leaves.error());
  CAIRN_FUZZ_CHECK(Is(DecodeTree(EncodeTree(*tree)), *tree));
  CheckSelection(record, *tree, *leaves, keep_bits);
  std::vector<bool> keep(leaves->size());
  for (size_t i = 0; i < keep.size(); ++i) keep[i] = (keep_bits >> (i % 64) & 1) != 0;
  const StateTree pruned = PruneTree(*tree, keep);
  const auto kept = FlattenTree(pruned);
  CAIRN_FUZZ_CHECK(kept.has_value());
  const auto wanted = static_cast<size_t>(std::ranges::count(keep, true));
  CAIRN_FUZZ_CHECK(kept->size() == wanted);
}

void FuzzExtension(Input input) {
  const std::string name(input.Text(input.Byte()));
  const std::vector<std::byte> record = input.CopyRest();
  const auto data = DecodeExtension(record, name);
  if (!data) return UseError(data.error());
  CAIRN_FUZZ_CHECK(!data->has_value() || (*data)->size() <= record.size());
}

/// A value, or a record of an application.
void FuzzValue(std::span<const std::byte> record) {
  {
    const MemoryLimit limit(record, 8);
    const auto data = DecodeApplicationRecord("name", record);
    CAIRN_FUZZ_CHECK(!data || data->size() <= record.size());
  }
  Result<Value> value;
  {
    const MemoryLimit limit(record, 8);
    value = DecodeValue(record);
  }
  if (!value) return UseError(value.error());
  CAIRN_FUZZ_CHECK(FormatValue(*value).size() < 1024);
  // A value that a store may contain can always be saved again.
  const auto once = EncodeValue(*value);
  CAIRN_FUZZ_CHECK(once.has_value());
  const auto again = DecodeValue(*once);
  CAIRN_FUZZ_CHECK(again.has_value() && Is(EncodeValue(*again), *once));
}

/// A name of a key, or several, as stored or as the caller of an edit gives them.
void FuzzNames(std::string_view fqn) {
  ptrdiff_t separators = 0;
  for (size_t at = 0; (at = FindSeparator(fqn, at)) != std::string_view::npos; ++at) {
    CAIRN_FUZZ_CHECK(fqn[at] == '.');
    ++separators;
  }
  const std::string texts = JoinedTexts(fqn);
  CAIRN_FUZZ_CHECK(texts.size() <= fqn.size() && std::ranges::count(texts, '.') >= separators);
  const auto node = ParseName(fqn);
  if (!node) return UseError(node.error());
  CAIRN_FUZZ_CHECK(NameOf(*node) == fqn && node->key == texts);
}

/// The first line is the key; the others are patterns.
void FuzzPatterns(Input input) {
  const std::string_view fqn = input.Line();
  FuzzNames(fqn);
  std::vector<std::string> texts;
  while (!input.rest().empty()) texts.emplace_back(input.Line());
  const auto patterns = KeyPatterns::Parse(texts);
  if (!patterns) return UseError(patterns.error());
  if (!patterns->Matches(fqn)) return;
  const auto prefixes = patterns->ScanPrefixes();
  const std::string key = kv::FqnKey(fqn);
  CAIRN_FUZZ_CHECK(std::ranges::any_of(
      prefixes, [&](const std::string& prefix) { return key.starts_with(prefix); }));
}

}  // namespace

void Fuzz(Input input) {
  switch (TakeSelector(input, 6)) {
    case 0:
      return FuzzTensor(input.CopyRest());
    case 1:
      return FuzzChunk(input);
    case 2:
      return FuzzTree(input);
    case 3:
      return FuzzExtension(input);
    case 4:
      return FuzzValue(input.CopyRest());
    default:
      return FuzzPatterns(input);
  }
}

}  // namespace cairn::fuzz
