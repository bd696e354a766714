// Exchanges layout messages:
//   1. The ranks agree on the status of their arguments, so that none waits for a rank that has
//      failed.
//   2. Each rank sends a header: digests of its options and layout message, and the length of the
//      message.
//   3. The lowest rank with each distinct message broadcasts it.
// From step 2 on all ranks check the same bytes, and return the same errors.

#include "core/collectives/internal/global_state_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "core/ranks/gather_values.h"
#include "core/ranks/internal/message_codec.h"
#include "core/ranks/status_agreement.h"
#include "core/state_dict/internal/leaves.h"
#include "core/tensor/tiling.h"
#include "kv/base/digest.h"

namespace cairn::core::internal {
namespace {

using Entry = GlobalStateLayout::Entry;

std::unexpected<Error> Invalid(std::string message, std::string_view fqn = {}) {
  return Fail(
      Error{.code = ErrorCode::kInvalidArgument, .message = std::move(message)}.WithKey(fqn));
}

// The header of step 2.
struct Header {
  uint64_t options = 0;
  uint64_t digest_lo = 0;
  uint64_t digest_hi = 0;
  uint64_t message_bytes = 0;

  bool HasSameMessage(const Header& other) const {
    return digest_lo == other.digest_lo && digest_hi == other.digest_hi &&
           message_bytes == other.message_bytes;
  }
};
static_assert(sizeof(Header) == 4 * sizeof(uint64_t));

void WriteMesh(const DeviceMesh& mesh, MessageWriter& writer) {
  writer.Number(mesh.dims().size());
  for (const DeviceMesh::Dim& dim : mesh.dims()) {
    writer.Text(dim.name);
    writer.Number(dim.size);
  }
  writer.Numbers(std::vector<uint64_t>(mesh.ranks().begin(), mesh.ranks().end()));
}

Result<std::shared_ptr<const DeviceMesh>> ReadMesh(MessageReader& reader) {
  std::vector<DeviceMesh::Dim> dims(std::min<uint64_t>(reader.Number(), 64));
  for (DeviceMesh::Dim& dim : dims) {
    dim.name = reader.Text();
    dim.size = static_cast<uint32_t>(reader.Number());
  }
  const auto numbers = reader.Numbers();
  CAIRN_TRY_ASSIGN(auto mesh, DeviceMesh::Make(std::move(dims), {numbers.begin(), numbers.end()}));
  return std::make_shared<const DeviceMesh>(std::move(mesh));
}

std::vector<Box> ReadBoxes(MessageReader& reader) {
  std::vector<Box> boxes;
  for (uint64_t left = reader.Number(); left > 0 && reader.ok(); --left) {
    Box& box = boxes.emplace_back();
    box.offsets = reader.Numbers();
    box.sizes = reader.Numbers();
  }
  return boxes;
}

Result<std::vector<Entry>> DecodeLayout(std::span<const std::byte> bytes) {
  MessageReader reader(bytes);
  std::vector<std::shared_ptr<const DeviceMesh>> meshes;
  for (uint64_t left = reader.Number(); left > 0 && reader.ok(); --left) {
    CAIRN_TRY_ASSIGN(auto mesh, ReadMesh(reader));
    meshes.push_back(std::move(mesh));
  }
  std::vector<Entry> entries;
  for (uint64_t left = reader.Number(); left > 0 && reader.ok(); --left) {
    Entry& entry = entries.emplace_back();
    entry.fqn = reader.Text();
    entry.kind = static_cast<Entry::Kind>(reader.Number());
    if (entry.kind == Entry::Kind::kWhole) continue;
    entry.dtype = static_cast<DType>(reader.Number());
    entry.shape = reader.Numbers();
    if (entry.kind == Entry::Kind::kBoxes) {
      entry.boxes = {ReadBoxes(reader)};
      const auto fits = [&](const Box& box) { return BoxFits(box, entry.shape); };
      if (!std::ranges::all_of(entry.boxes.front(), fits)) break;
      continue;
    }
    const uint64_t mesh = reader.Number();
    if (mesh >= meshes.size()) break;
    entry.mesh = meshes[mesh];
    for (size_t m = 0; m < entry.mesh->dims().size(); ++m) {
      Placement& placement = entry.placements.emplace_back();
      placement.kind = static_cast<Placement::Kind>(reader.Number());
      placement.dim = static_cast<uint32_t>(reader.Number());
      placement.split_factor = static_cast<uint32_t>(reader.Number());
    }
  }
  if (reader.ok() && reader.at_end()) return entries;
  return Fail(ErrorCode::kInternal, "another rank's description of its state is damaged");
}

// The message contains each mesh once, then the leaves.
std::vector<std::byte> EncodeLayout(const StateDict& state, const std::vector<Leaf>& leaves,
                                    uint32_t rank) {
  std::vector<const DeviceMesh*> meshes;
  std::map<const DeviceMesh*, uint64_t> index;
  for (const auto& [tensor, sharding] : state.shardings) {
    if (sharding.mesh == nullptr) continue;
    if (index.emplace(sharding.mesh.get(), meshes.size()).second) {
      meshes.push_back(sharding.mesh.get());
    }
  }
  MessageWriter writer;
  writer.Number(meshes.size());
  for (const DeviceMesh* mesh : meshes) WriteMesh(*mesh, writer);
  writer.Number(leaves.size());
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    writer.Text(leaves[i].fqn);
    const bool tensor = IsTensor(state.tree.nodes[leaves[i].node].kind);
    const Sharding* sharding = tensor ? FindSharding(state, state.slot[i]) : nullptr;
    auto kind = Entry::Kind::kWhole;
    if (sharding != nullptr) {
      kind = sharding->mesh == nullptr ? Entry::Kind::kBoxes : Entry::Kind::kMesh;
    }
    writer.Number(static_cast<uint64_t>(kind));
    if (kind == Entry::Kind::kWhole) continue;
    writer.Number(static_cast<uint64_t>(state.tensors[state.slot[i]].dtype));
    writer.Numbers(sharding->global_shape);
    if (kind == Entry::Kind::kBoxes) {
      const auto shards = ShardViewsHere(*sharding, state.tensors[state.slot[i]], rank);
      CAIRN_CHECK(shards.has_value());  // CheckShardings has checked it
      writer.Number(shards->size());
      for (const ShardView& shard : *shards) {
        writer.Numbers(shard.box.offsets);
        writer.Numbers(shard.box.sizes);
      }
      continue;
    }
    writer.Number(index.at(sharding->mesh.get()));
    for (const Placement& placement : sharding->placements) {
      writer.Number(static_cast<uint64_t>(placement.kind));
      writer.Number(placement.dim);
      writer.Number(placement.split_factor);
    }
  }
  std::vector<std::byte> message = std::move(writer).Take();
  CAIRN_DCHECK(DecodeLayout(message).has_value());
  return message;
}

// Returns how two descriptions of a key differ; empty if they do not.
std::string Conflict(const Entry& a, const Entry& b) {
  const auto how = [](const Entry& entry) {
    return entry.kind == Entry::Kind::kWhole  ? "not sharded"
           : entry.kind == Entry::Kind::kMesh ? "sharded over a mesh"
                                              : "in explicit shards";
  };
  if (a.kind != b.kind) return fmt::format("{} and {}", how(a), how(b));
  if (a.kind == Entry::Kind::kWhole) return {};
  if (a.dtype != b.dtype || a.shape != b.shape) {
    return fmt::format("{} [{}] and {} [{}]", schema::DTypeName(a.dtype), fmt::join(a.shape, ", "),
                       schema::DTypeName(b.dtype), fmt::join(b.shape, ", "));
  }
  if (a.kind == Entry::Kind::kBoxes) return {};
  if (!a.mesh->IsSame(*b.mesh)) return "on different meshes";
  if (a.placements != b.placements) return "with different placements";
  return {};
}

}  // namespace

Result<std::vector<ShardView>> ShardViewsHere(const Sharding& sharding, const TensorView& local,
                                              uint32_t rank) {
  if (sharding.mesh != nullptr && !sharding.mesh->CoordinateOf(rank)) {
    return std::vector<ShardView>{};
  }
  return ShardViewsOf(sharding, local, rank);
}

Result<void> CheckShardings(const StateDict& state, const std::vector<Leaf>& leaves,
                            uint32_t rank) {
  for (uint32_t i = 0; i < leaves.size(); ++i) {
    if (!IsTensor(state.tree.nodes[leaves[i].node].kind)) continue;
    const TensorView& view = state.tensors[state.slot[i]];
    const Sharding* sharding = FindSharding(state, state.slot[i]);
    const Shape& shape = sharding == nullptr ? view.shape : sharding->global_shape;
    if (auto bytes = TensorBytes(view.dtype, shape); !bytes) {
      return Fail(std::move(bytes).error().WithKey(leaves[i].fqn));
    }
    if (sharding == nullptr) continue;
    // Also on ranks that are not in the mesh, because all ranks use the same placements.
    if (sharding->mesh != nullptr) {
      const uint32_t member = sharding->mesh->ranks().front();
      if (auto shard = ShardOf(shape, *sharding->mesh, sharding->placements, member); !shard) {
        return Fail(std::move(shard).error().WithKey(leaves[i].fqn));
      }
    }
    if (auto shards = ShardViewsHere(*sharding, view, rank); !shards) {
      return Fail(std::move(shards).error().WithKey(leaves[i].fqn));
    }
  }
  return {};
}

Result<GlobalStateLayout> GlobalStateLayout::Exchange(Communicator& communicator,
                                                      const StateDict& state,
                                                      const std::vector<Leaf>& leaves,
                                                      const Result<void>& local,
                                                      std::span<const uint64_t> options) {
  CAIRN_TRY(AgreeOnStatus(communicator, local));
  const auto rank = static_cast<uint32_t>(communicator.rank());
  const std::vector<std::byte> message = EncodeLayout(state, leaves, rank);
  const kv::Digest digest = kv::PayloadDigest(message);
  const Header mine{.options = kv::Checksum64(std::as_bytes(options)),
                    .digest_lo = digest.lo,
                    .digest_hi = digest.hi,
                    .message_bytes = message.size()};
  CAIRN_TRY_ASSIGN(const std::vector<Header> headers, AllGatherValues(communicator, mine));

  GlobalStateLayout layout;
  std::vector<uint32_t> senders;  // by message: the lowest rank that has it
  for (uint32_t r = 0; r < headers.size(); ++r) {
    if (headers[r].options != headers[0].options) {
      return Invalid(
          fmt::format("ranks 0 and {} called the collective with different arguments", r));
    }
    const auto same = std::ranges::find_if(
        senders, [&](uint32_t other) { return headers[r].HasSameMessage(headers[other]); });
    layout.message_of_rank_.push_back(static_cast<uint32_t>(same - senders.begin()));
    if (same == senders.end()) senders.push_back(r);
  }
  for (uint32_t i = 0; i < senders.size(); ++i) {
    std::vector<std::byte> bytes = message;
    bytes.resize(headers[senders[i]].message_bytes);
    CAIRN_TRY(communicator.Broadcast(bytes, static_cast<int>(senders[i])));
    CAIRN_TRY_ASSIGN(auto entries, DecodeLayout(bytes));
    CAIRN_TRY(layout.Merge(i, std::move(entries)));
  }
  CAIRN_TRY(layout.CheckMeshes());
  CAIRN_TRY(layout.CheckBoxes());
  return layout;
}

uint32_t GlobalStateLayout::FirstRankOf(uint32_t message) const {
  return static_cast<uint32_t>(std::ranges::find(message_of_rank_, message) -
                               message_of_rank_.begin());
}

// An error must not end the exchange on some ranks only: all ranks merge the same messages in the
// same order, so that either all fail here or none does.
Result<void> GlobalStateLayout::Merge(uint32_t message, std::vector<Entry> entries) {
  for (Entry& entry : entries) {
    const auto [found, is_new] = by_fqn_.emplace(entry.fqn, entries_.size());
    if (is_new) {
      entry.messages = {message};
      entries_.push_back(std::move(entry));
      continue;
    }
    Entry& known = entries_[found->second];
    if (const std::string conflict = Conflict(known, entry); !conflict.empty()) {
      return Invalid(
          fmt::format("ranks {} and {} disagree about a tensor: {}",
                      FirstRankOf(known.messages.front()), FirstRankOf(message), conflict),
          entry.fqn);
    }
    known.messages.push_back(message);
    std::ranges::move(entry.boxes, std::back_inserter(known.boxes));
  }
  return {};
}

Result<void> GlobalStateLayout::CheckMeshes() const {
  for (const Entry& entry : entries_) {
    if (entry.kind != Entry::Kind::kMesh) continue;
    for (const uint32_t rank : entry.mesh->ranks()) {
      if (rank >= world_size()) {
        return Invalid(fmt::format("its mesh contains rank {}; the communicator has {} ranks", rank,
                                   world_size()),
                       entry.fqn);
      }
      if (!Has(entry, rank)) {
        return Invalid(fmt::format("rank {} is in the tensor's mesh, but its state dict does "
                                   "not have the key",
                                   rank),
                       entry.fqn);
      }
    }
  }
  return {};
}

Result<void> GlobalStateLayout::CheckBoxes() const {
  for (const Entry& entry : entries_) {
    if (entry.kind != Entry::Kind::kBoxes) continue;
    BoxList list(entry.shape.size());
    std::vector<uint32_t> ranks;  // by box
    for (const uint32_t rank : RanksWith(entry)) {
      for (const Box& box : BoxesOf(entry, rank)) {
        list.Add(box);
        ranks.push_back(rank);
      }
    }
    const auto flaw = FindTilingFlaw(entry.shape, list);
    if (!flaw) continue;
    const std::string element = fmt::format("{}", fmt::join(flaw->element, ", "));
    if (flaw->kind != TilingFlaw::Kind::kOverlap) {  // no box is outside
      return Invalid(fmt::format("no rank's shard contains element [{}]", element), entry.fqn);
    }
    return Invalid(fmt::format("shards of rank {} and rank {} both contain element [{}]",
                               ranks[flaw->boxes[0]], ranks[flaw->boxes[1]], element),
                   entry.fqn);
  }
  return {};
}

int64_t GlobalStateLayout::Find(std::string_view fqn) const {
  const auto found = by_fqn_.find(std::string(fqn));
  return found == by_fqn_.end() ? -1 : static_cast<int64_t>(found->second);
}

bool GlobalStateLayout::Has(const Entry& entry, uint32_t rank) const {
  return std::ranges::binary_search(entry.messages, message_of_rank_[rank]);
}

std::vector<uint32_t> GlobalStateLayout::RanksWith(const Entry& entry) const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < world_size(); ++rank) {
    if (Has(entry, rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Box> GlobalStateLayout::BoxesOf(const Entry& entry, uint32_t rank) const {
  if (entry.kind == Entry::Kind::kBoxes) {
    const auto found = std::ranges::lower_bound(entry.messages, message_of_rank_[rank]);
    if (found == entry.messages.end() || *found != message_of_rank_[rank]) return {};
    return entry.boxes[static_cast<size_t>(found - entry.messages.begin())];
  }
  std::vector<Box> boxes;
  if (!entry.mesh->CoordinateOf(rank)) return boxes;
  const auto shard = ShardOf(entry.shape, *entry.mesh, entry.placements, rank);
  CAIRN_CHECK(shard.has_value());  // every rank has checked its shardings before step 2
  for (ShardBox& shard_box : shard->Boxes()) boxes.push_back(std::move(shard_box.box));
  return boxes;
}

}  // namespace cairn::core::internal
