// Writes steps whose records are forged: they are changed, and their tables have right checksums.
//
//   forge_program STORE COUNT SEED    adds the steps 1000, 1001, ...: copies of step 1 in which one
//                                     record of a tensor, a value or the tree is changed
//
// Exit status 0: done; 1: an error.

#include <array>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kv/base/step_info.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/kv_records.h"
#include "kv/step_writer.h"
#include "kv/store.h"

namespace cairn::kv {
namespace {

using Record = std::pair<std::string, std::vector<std::byte>>;  // key and value

Result<std::vector<Record>> ReadColumn(const Snapshot& snapshot, const StepInfo& step,
                                       Column column) {
  std::vector<Record> records;
  CAIRN_TRY(
      snapshot.Scan(column, step, "",
                    [&](std::string_view key, std::span<const std::byte> record) -> Result<bool> {
                      records.emplace_back(key, std::vector(record.begin(), record.end()));
                      return true;
                    }));
  return records;
}

/// Changes one to three bytes, mostly to values at the ends of ranges.
void Change(std::vector<std::byte>& bytes, std::mt19937_64& random) {
  constexpr std::array<uint8_t, 8> kValues{0, 1, 2, 0x7f, 0x80, 0xfe, 0xff, 10};
  for (uint64_t i = 0; i <= random() % 3; ++i) {
    const uint64_t value = random() % 12;
    bytes[random() % bytes.size()] =
        static_cast<std::byte>(value < kValues.size() ? kValues[value] : random());
  }
}

Result<void> Forge(Store& store, uint64_t number, std::mt19937_64& random) {
  CAIRN_TRY_ASSIGN(const auto snapshot, store.Latest());
  CAIRN_TRY_ASSIGN(const StepInfo step, snapshot->FindStep(1));
  CAIRN_TRY_ASSIGN(auto tensors, ReadColumn(*snapshot, step, Column::kTensors));
  CAIRN_TRY_ASSIGN(auto values, ReadColumn(*snapshot, step, Column::kValues));
  CAIRN_TRY_ASSIGN(const auto chunks, ReadColumn(*snapshot, step, Column::kChunks));
  CAIRN_TRY_ASSIGN(auto structure, snapshot->GetStructure(step));
  switch (random() % 3) {
    case 0:
      Change(tensors[random() % tensors.size()].second, random);
      break;
    case 1:
      Change(values[random() % values.size()].second, random);
      break;
    default:
      Change(*structure, random);
  }
  CAIRN_TRY_ASSIGN(const auto writer, store.Begin(number, {}));
  for (const auto& [key, value] : tensors) {
    CAIRN_TRY(writer->AddRecord(Column::kTensors, key, value));
  }
  for (const auto& [key, value] : values) {
    CAIRN_TRY(writer->AddRecord(Column::kValues, key, value));
  }
  writer->ReferTo(step);
  for (const auto& [key, value] : chunks) {
    CAIRN_TRY_ASSIGN(ChunkEntry entry, internal::DecodeChunk(value));
    CAIRN_TRY(writer->AddChunk(key, std::move(entry), /*reused=*/true));
  }
  CAIRN_TRY(writer->SetStructure(*structure));
  CAIRN_TRY(writer->Commit({.base_step = 1,
                            .tensor_count = step.tensor_count,
                            .value_count = step.value_count,
                            .logical_bytes = step.logical_bytes}));
  return {};
}

Result<void> ForgeSteps(const std::string& path, uint64_t count, uint64_t seed) {
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(path, OpenMode::kWrite));
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < count; ++i) CAIRN_TRY(Forge(*store, 1000 + i, random));
  return store->Close();
}

}  // namespace
}  // namespace cairn::kv

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto forged = cairn::kv::ForgeSteps(argv[1], std::stoull(argv[2]), std::stoull(argv[3]));
  if (forged) return 0;
  std::fprintf(stderr, "forge_program: %s\n", forged.error().ToString().c_str());
  return 1;
}
