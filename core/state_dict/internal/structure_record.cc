#include "core/state_dict/internal/structure_record.h"

#include <cstdint>

#include "cairn_schema/structure_generated.h"
#include "kv/base/record_check.h"

namespace cairn::core::internal {

Result<const schema::StructureRecord*> CheckedStructure(std::span<const std::byte> bytes) {
  CAIRN_TRY_ASSIGN(const schema::StructureRecord* record,
                   kv::CheckedRecord<schema::StructureRecord>(
                       bytes, schema::StructureRecordIdentifier(), "StructureRecord"));
  const auto* kinds = record->kinds();
  const auto* key_kinds = record->key_kinds();
  const auto* keys = record->keys();
  const auto* counts = record->child_counts();
  if (kinds == nullptr || key_kinds == nullptr || keys == nullptr || counts == nullptr ||
      kinds->size() != key_kinds->size() || kinds->size() != keys->size() ||
      kinds->size() != counts->size()) {
    return Fail(ErrorCode::kDataLoss, "StructureRecord is damaged: its vectors differ in length");
  }
  uint64_t key_bytes = 0;
  for (uint32_t i = 0; i < kinds->size(); ++i) {
    if (kinds->Get(i) > schema::NodeKind::MAX || key_kinds->Get(i) > schema::KeyKind::MAX) {
      return Fail(
          ErrorCode::kUnimplemented,
          "a state dict contains a node kind that is unknown to this version; upgrade to read it");
    }
    // Nodes of a hostile record may refer to the same key, which would be copied for each.
    key_bytes += keys->Get(i)->size();
    if (key_bytes > bytes.size()) {
      return Fail(ErrorCode::kDataLoss, "StructureRecord is damaged: its keys are longer than it");
    }
  }
  return record;
}

}  // namespace cairn::core::internal
