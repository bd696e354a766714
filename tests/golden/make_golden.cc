// Creates those of four golden stores that do not exist yet; make_golden.py creates the others.
// make_golden DIR creates DIR-ranks with steps that three ranks wrote, DIR-chunks with boxes of no
// grid and pages of other sizes, DIR-bcomplex32 with a dtype that torch has from 2.14 on, and
// DIR-example, which docs/format/ shows.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint_store.h"
#include "kv/base/options.h"
#include "kv/commit/internal/part_file.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/root_log.h"
#include "kv/root/internal/root_record.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/core/foreign_chunks.h"
#include "tests/kv/sample_step.h"
#include "tests/support/fixed_environment.h"

namespace cairn::kv::testing {
namespace {

using cairn::testing::AdvanceClock;

/// Removes older roots, which would be most of the bytes of a store and are of no use here.
Result<void> KeepRoots(const std::string& directory, uint64_t count) {
  CAIRN_TRY_ASSIGN(const auto storage, OpenStorage(directory));
  CAIRN_TRY_ASSIGN(const auto root, internal::FindNewest(*storage));
  CAIRN_TRY(internal::RemoveOldRoots(*storage, root->number, count));
  return {};
}

/// Opens two more ranks.
Result<std::vector<std::unique_ptr<Store>>> OpenOthers(Store& store, const std::string& directory) {
  std::vector<std::unique_ptr<Store>> others;
  for (int i = 0; i < 2; ++i) {
    CAIRN_TRY_ASSIGN(const std::string session, store.OpenSession());
    CAIRN_TRY_ASSIGN(auto other,
                     Store::Open(directory, OpenMode::kJoinSession, {.session = session}));
    others.push_back(std::move(other));
  }
  return others;
}

/// Two steps of three ranks. make_golden.py states what they contain.
Result<void> MakeGoldenRanks(const std::string& directory) {
  AdvanceClock();
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite));
  CAIRN_TRY_ASSIGN(const auto others, OpenOthers(*store, directory));
  for (const uint64_t step : {1, 2}) {
    AdvanceClock();
    SampleStep sample{.step = step, .version = step, .tensors = {}};
    sample.tensors["empty"] = {};
    sample.tensors["frozen"].resize(1'500, std::byte{3});
    sample.tensors["hot"].resize(1'000, static_cast<std::byte>(step));
    CAIRN_TRY(SaveSampleByRanks(*store, others, sample));
  }
  CAIRN_TRY(store->Close());
  return KeepRoots(directory, 2);
}

/// Steps 12 and 20: a matrix in five boxes that no line divides, with pages of 2^step bytes.
Result<void> MakeGoldenChunks(const std::string& directory) {
  AdvanceClock();
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(directory, OpenMode::kWrite));
  std::vector<std::byte> bytes(100 * 120);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i / 64 * 7 + i);
  const core::TensorView tensor{
      .dtype = core::DType::kUInt8, .shape = {100, 120}, .strides = {}, .data = bytes.data()};
  const std::vector<core::Box> boxes = {{{0, 0}, {30, 110}},
                                        {{0, 110}, {90, 10}},
                                        {{30, 0}, {70, 20}},
                                        {{30, 20}, {60, 90}},
                                        {{90, 20}, {10, 100}}};
  for (const uint8_t page_bits : std::array<uint8_t, 2>{12, 20}) {
    AdvanceClock();
    CAIRN_TRY(core::WriteForeign(*store, page_bits, tensor, boxes, page_bits));
  }
  return store->Close();
}

/// Step 1: a tensor "w" of 3 x 4 elements whose bits are 0, 1, 2 ...
Result<void> MakeGoldenBcomplex32(const std::string& directory) {
  AdvanceClock();
  CAIRN_TRY_ASSIGN(const auto store, core::CheckpointStore::Open(directory, OpenMode::kWrite));
  std::array<uint32_t, 12> elements;
  std::iota(elements.begin(), elements.end(), 0);
  core::StateDict state;
  state.root().Tensor("w", {.dtype = core::DType::kBComplex32,
                            .shape = {3, 4},
                            .strides = {4, 1},
                            .data = std::as_bytes(std::span(elements)).data()});
  CAIRN_TRY(store->Save(1, state));
  return store->Close();
}

/// Steps with a tensor "w" of five bytes, which never change. Steps 66 and 67 have a tensor "p" of
/// 80,000 bytes, too, of which the second page differs.
Result<void> SaveExample(core::CheckpointStore& store, uint64_t step) {
  AdvanceClock();
  const std::string_view hello = "hello";
  std::vector<std::byte> page(80'000);
  for (size_t i = 0; i < page.size(); ++i) {
    page[i] = static_cast<std::byte>(i / 64 * 7 + (i < kPageBytes ? 0 : step));
  }
  core::StateDict state;
  const auto add = [&](const char* key, const void* data, uint64_t size) {
    state.root().Tensor(key, {.dtype = core::DType::kUInt8,
                              .shape = {size},
                              .strides = {1},
                              .data = static_cast<const std::byte*>(data)});
  };
  add("w", hello.data(), hello.size());
  if (step >= 66) add("p", page.data(), page.size());
  CAIRN_TRY(store.Save(step, state));
  return {};
}

/// The part of rank 1 of 2 of a step that is not committed, with the summary of the step.
Result<void> PutPart(const std::string& directory) {
  CAIRN_TRY_ASSIGN(const auto storage, OpenStorage(directory));
  CAIRN_TRY_ASSIGN(const auto root, internal::FindNewest(*storage));
  const std::string attempt = root->writer.session + "-68-0";
  const internal::PartHeader header{
      .store_uuid = root->store_uuid, .step = 68, .rank = 1, .world_size = 2, .attempt = attempt};
  internal::PartWriter part(storage, "pending/" + attempt + "/1.part", header);
  const StepInfo info{.step = 68,
                      .created_unix_ns = internal::NowUnixNs(),
                      .world_size = 2,
                      .attempt = attempt,
                      .tensor_count = 1,
                      .chunk_count = 1,
                      .logical_bytes = 5};
  const std::string key(1, static_cast<char>(Column::kSteps));
  CAIRN_TRY(part.Add({.key = key, .value = internal::EncodeStep(info)}));
  return part.Finish();
}

/// 67 steps, of which 6 remain, in a page and in the root.
Result<void> MakeExample(const std::string& directory) {
  {
    AdvanceClock();
    CAIRN_TRY_ASSIGN(const auto store,
                     core::CheckpointStore::Open(directory, OpenMode::kWrite,
                                                 {.grace = std::chrono::milliseconds(0)}));
    for (uint64_t step = 1; step <= 67; ++step) {
      CAIRN_TRY(SaveExample(*store, step));
      if (step == 65) {
        std::vector<uint64_t> deleted(63);
        std::iota(deleted.begin(), deleted.end(), 1);
        std::erase_if(deleted, [](uint64_t one) { return one == 7 || one == 8; });
        CAIRN_TRY(store->Delete(deleted));
      }
    }
    CAIRN_TRY(store->Close());
  }
  CAIRN_TRY(PutPart(directory));
  return KeepRoots(directory, 2);
}

Result<void> MakeMissing(const std::string& prefix) {
  const std::pair<const char*, Result<void> (*)(const std::string&)> kinds[] = {
      {"-example", MakeExample},
      {"-ranks", MakeGoldenRanks},
      {"-chunks", MakeGoldenChunks},
      {"-bcomplex32", MakeGoldenBcomplex32}};
  for (const auto& [name, make] : kinds) {
    if (!std::filesystem::exists(prefix + name)) CAIRN_TRY(make(prefix + name));
  }
  return {};
}

}  // namespace
}  // namespace cairn::kv::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_golden DIR\n");
    return 2;
  }
  const auto made = cairn::kv::testing::MakeMissing(argv[1]);
  if (!made) {
    std::fprintf(stderr, "make_golden: %s\n", made.error().ToString().c_str());
    return 2;
  }
  return 0;
}
