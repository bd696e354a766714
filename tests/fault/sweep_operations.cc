// The operations, and the stores they work on.

#include "tests/fault/sweep_operations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "core/interop/safetensors/safetensors_export.h"
#include "core/interop/safetensors/safetensors_file.h"
#include "core/step/contents.h"
#include "kv/base/digest.h"
#include "kv/copy_steps.h"
#include "kv/read/snapshot.h"
#include "kv/storage/open/open_storage.h"
#include "kv/store.h"
#include "tests/core/tensor/test_tensor.h"
#include "tests/fault/operations.h"
#include "tests/kv/sample_step.h"
#include "tests/support/result_matchers.h"
#include "tests/support/thread_communicator.h"
#include "tests/support/without_value.h"

namespace cairn::testing {
namespace {

using core::CheckpointStore;
using core::DType;
using core::SaveOptions;
using core::StateDict;
using core::TestTensor;
using std::chrono::milliseconds;

constexpr uint64_t kChunkBytes = 64 << 10;

/// A state of 150 KB. A tensor is the same in all versions, one changes completely, and in one a
/// few elements change.
struct State {
  explicit State(uint8_t version)
      : version_(version),
        frozen_(DType::kInt8, {70'000}),
        changing_(DType::kFloat32, {30}, version),
        tuned_(DType::kBFloat16, {40'000}) {
    for (uint64_t i = 0; i < 20; ++i) tuned_.bytes[i * 3000] = std::byte{version};
  }

  StateDict dict() const {
    StateDict state;
    state.root().Tensor("frozen", frozen_.view());
    state.root().Tensor("changing", changing_.view());
    state.root().Tensor("tuned", tuned_.view());
    state.root().Value("version", int64_t{version_});
    return state;
  }

 private:
  uint8_t version_;
  TestTensor frozen_, changing_, tuned_;
};

Result<std::unique_ptr<CheckpointStore>> OpenForWriting(const std::string& path) {
  return CheckpointStore::Open(path, kv::OpenMode::kWrite, SweptOptions());
}

/// Runs `change` on the store, and closes it.
Outcome Change(const std::string& path,
               const std::function<Result<void>(CheckpointStore&)>& change) {
  const auto store = OpenForWriting(path);
  if (!store) return {.performed = Fail(store.error()), .closed = {}};
  Outcome outcome;
  outcome.performed = change(**store);
  outcome.closed = (*store)->Close();
  return outcome;
}

Result<void> SaveState(CheckpointStore& store, uint64_t step, uint8_t version,
                       SaveOptions options = {}) {
  options.chunk_bytes = kChunkBytes;
  const State state(version);
  CAIRN_TRY(store.Save(step, state.dict(), options));
  return {};
}

/// Steps 1, 2 and 3, of which 2 was overwritten. Most bytes are shared.
Result<void> PrepareStore(const std::string& path) {
  const Outcome outcome = Change(path, [](CheckpointStore& store) -> Result<void> {
    CAIRN_TRY(SaveState(store, 1, 1));
    CAIRN_TRY(SaveState(store, 2, 2));
    CAIRN_TRY(SaveState(store, 3, 3, {.max_deltas = 4}));
    return SaveState(store, 2, 4, {.overwrite = true, .base_step = 1});
  });
  CAIRN_TRY(outcome.performed);
  return outcome.closed;
}

Result<void> PrepareHistory(const std::string& directory) {
  return PrepareStore(directory + "/store");
}

/// An operation on a store with the usual steps.
SweptOperation OnStore(std::string name, std::function<Result<void>(CheckpointStore&)> change) {
  return {.name = std::move(name),
          .prepare = PrepareHistory,
          .perform = [=](const std::string& directory, milliseconds) {
            return Change(directory + "/store", change);
          }};
}

SweptOperation SaveWith(std::string name, uint64_t step, const SaveOptions& options) {
  return OnStore(std::move(name),
                 [=](CheckpointStore& store) { return SaveState(store, step, 9, options); });
}

Outcome SaveByRanks(const std::string& directory, milliseconds patience) {
  std::mutex mutex;
  Outcome outcome;
  const auto report = [&](Result<void>& part, const Result<void>& result) {
    const std::lock_guard lock(mutex);
    if (!result && part) part = result;
  };
  RunRanks(
      2,
      [&](core::Communicator& communicator) {
        const auto store = CheckpointStore::OpenShared(directory + "/store", kv::OpenMode::kWrite,
                                                       communicator, SweptOptions());
        if (!store) return report(outcome.performed, Fail(store.error()));
        const auto rank = static_cast<uint64_t>(communicator.rank());
        const TestTensor half(DType::kInt8, {60'000}, static_cast<uint8_t>(rank));
        const State held(9);
        StateDict state = held.dict();
        state.root().Sharded(
            "sharded", {.dtype = DType::kInt8, .shape = {}},
            {.global_shape = {120'000},
             .mesh = nullptr,
             .placements = {},
             .parts = {{.box = {{rank * 60'000}, {60'000}}, .view = half.view()}}});
        const auto saved =
            (*store)->Save(4, state, {.chunk_bytes = kChunkBytes, .deadline = patience});
        if (!saved) report(outcome.performed, Fail(saved.error()));
        report(outcome.closed, (*store)->Close());
      },
      patience * 3);
  return outcome;
}

/// An open for writing that removes what a writer of an older epoch has left.
SweptOperation Open() {
  return {.name = "open",
          .prepare = [](const std::string& directory) -> Result<void> {
            CAIRN_TRY(PrepareHistory(directory));
            CAIRN_TRY_ASSIGN(const auto storage, kv::OpenStorage(directory + "/store"));
            return kv::testing::PlantGarbage(*storage);
          },
          .perform =
              [](const std::string& directory, milliseconds) {
                return Change(directory + "/store",
                              [](CheckpointStore&) { return Result<void>(); });
              },
          .commits = 0,
          .call_stride = 4,
          .cut_stride = 1};
}

SweptOperation FirstSave() {
  SweptOperation save = SaveWith("first save", 1, {});
  save.prepare = [](const std::string& directory) -> Result<void> {
    std::filesystem::create_directories(directory);
    return {};
  };
  save.call_stride = 4;
  save.cut_stride = 1;
  return save;
}

/// The save of root 80, which removes older ones.
SweptOperation SaveThatRemovesARoot() {
  SweptOperation save = SaveWith("save that removes a root", 1, {.overwrite = true});
  save.prepare = [](const std::string& directory) -> Result<void> {
    const Outcome outcome =
        Change(directory + "/store", [](CheckpointStore& store) -> Result<void> {
          const TestTensor tensor(DType::kInt8, {1});
          StateDict state;
          state.root().Tensor("x", tensor.view());
          // Root 1 is the open, and root 79 the next one.
          for (uint64_t root = 2; root <= 78; ++root) {
            CAIRN_TRY(store.Save(1, state, {.overwrite = true}));
          }
          return {};
        });
    CAIRN_TRY(outcome.performed);
    return outcome.closed;
  };
  save.cut_stride = 1;
  return save;
}

SweptOperation Delete() {
  return OnStore("delete", [](CheckpointStore& store) {
    return WithoutValue(store.Delete(std::array<uint64_t, 2>{1, 3}));
  });
}

SweptOperation Prune() {
  SweptOperation prune = SaveWith("prune", 4, {});
  prune.prepare = [](const std::string& directory) -> Result<void> {
    CAIRN_TRY(PrepareHistory(directory));
    const auto set = [](CheckpointStore& store) {
      return store.kv().SetRetention({.keep_last = 2});
    };
    return Change(directory + "/store", set).performed;
  };
  return prune;
}

SweptOperation Compaction() {
  SweptOperation compaction = OnStore("compact", [](CheckpointStore& store) {
    return WithoutValue(store.Compact({.max_dead = 0}));
  });
  compaction.commits = 0;
  compaction.prepare = [](const std::string& directory) -> Result<void> {
    CAIRN_TRY(PrepareHistory(directory));
    return Delete().perform(directory, {}).performed;
  };
  return compaction;
}

SweptOperation Merge() {
  return OnStore("merge", [](CheckpointStore& store) {
    return WithoutValue(store.Merge(std::array<uint64_t, 2>{1, 3}, 4));
  });
}

/// Copies steps to the store "copy".
Outcome Copy(const std::string& directory, std::vector<uint64_t> steps) {
  const auto source =
      CheckpointStore::Open(directory + "/store", kv::OpenMode::kRead, SweptOptions());
  if (!source) return {.performed = Fail(source.error()), .closed = {}};
  return Change(directory + "/copy", [&](CheckpointStore& store) -> Result<void> {
    kv::CopyOptions options{.steps = std::move(steps)};
    options.keep_interval = milliseconds(0);  // an announcement after each segment
    CAIRN_TRY(kv::CopySteps((*source)->kv(), store.kv(), options));
    return {};
  });
}

SweptOperation Mirror() {
  return {.name = "mirror",
          .store = "copy",
          .prepare = PrepareHistory,
          .perform = [](const std::string& directory,
                        milliseconds) { return Copy(directory, {1, 2, 3}); },
          .commits = 3,
          .call_stride = 11,
          .cut_stride = 2};
}

SweptOperation Pull() {
  return {
      .name = "pull",
      .store = "copy",
      .prepare = [](const std::string& directory) -> Result<void> {
        CAIRN_TRY(PrepareHistory(directory));
        return Copy(directory, {1, 2}).performed;
      },
      .perform = [](const std::string& directory, milliseconds) { return Copy(directory, {3}); },
      .call_stride = 11,
      .cut_stride = 2};
}

SweptOperation Import() {
  return {.name = "import",
          .prepare = [](const std::string& directory) -> Result<void> {
            CAIRN_TRY(PrepareHistory(directory));
            CAIRN_TRY_ASSIGN(
                const auto store,
                CheckpointStore::Open(directory + "/store", kv::OpenMode::kRead, SweptOptions()));
            CAIRN_TRY_ASSIGN(const auto contents, store->List(1));
            CAIRN_TRY(core::ExportSafetensors(*store, contents, directory + "/model.safetensors"));
            return {};
          },
          .perform = [](const std::string& directory, milliseconds) -> Outcome {
            const auto file = core::SafetensorsFile::Open(directory + "/model.safetensors");
            if (!file) return {.performed = Fail(file.error()), .closed = {}};
            return Change(directory + "/store", [&](CheckpointStore& store) {
              return WithoutValue(
                  store.Save(4, core::SafetensorsState({&*file, 1}), {.chunk_bytes = kChunkBytes}));
            });
          }};
}

Result<uint64_t> DigestOf(const CheckpointStore& store, uint64_t step) {
  CAIRN_TRY_ASSIGN(const core::Contents contents, store.List(step));
  std::string text;
  for (const std::byte b : core::EncodeTree(contents.tree)) text += static_cast<char>(b);
  for (const core::ValueInfo& value : contents.values) {
    CAIRN_TRY_ASSIGN(const auto bytes, core::EncodeValue(value.value));
    text += value.fqn;
    for (const std::byte b : bytes) text += static_cast<char>(b);
  }
  for (const core::TensorInfo& tensor : contents.tensors) {
    TestTensor target(tensor.dtype, tensor.shape, 0);
    const core::LoadRequest request = core::WholeRequest(tensor.fqn, target);
    CAIRN_TRY(store.Load(contents.step, {&request, 1}));
    text += tensor.fqn + fmt::format("{}", fmt::join(tensor.shape, ",")) +
            std::to_string(static_cast<int>(tensor.dtype)) +
            std::to_string(kv::Checksum64(target.bytes));
  }
  return kv::Checksum64(std::as_bytes(std::span(text)));
}

}  // namespace

kv::StoreOptions SweptOptions() {
  kv::StoreOptions options;
  options.io = {.direct = false, .uring = false, .block_bytes = 64 << 10, .queue_depth = 3};
  options.grace = milliseconds(0);
  return options;
}

Result<StoreContents> ReadStore(const core::CheckpointStore& store) {
  StoreContents contents;
  CAIRN_TRY_ASSIGN(const auto steps, store.StepNumbers());
  for (const uint64_t step : steps) {
    CAIRN_TRY_ASSIGN(contents[step], DigestOf(store, step));
  }
  return contents;
}

Result<StoreContents> ReadStore(const std::string& path) {
  const auto store = CheckpointStore::Open(path, kv::OpenMode::kRead, SweptOptions());
  if (!store && store.error().code == ErrorCode::kNotFound) return StoreContents();
  const std::string created = path + "/CAIRN";  // the last object of a new store
  if (!store && !std::filesystem::exists(created)) return StoreContents();
  if (!store) return Fail(store.error());
  return ReadStore(**store);
}

StoreContents CheckStore(const std::string& path, const std::vector<StoreContents>& allowed) {
  const auto read = ReadStore(path);
  EXPECT_TRUE(IsOk(read));
  if (!read) return {};
  EXPECT_THAT(allowed, ::testing::Contains(*read)) << "a committed step is lost, or differs";
  kv::StoreOptions options = SweptOptions();
  options.take_over = true;
  const auto store = CheckpointStore::Open(path, kv::OpenMode::kWrite, options);
  EXPECT_TRUE(IsOk(store));
  if (!store) return {};
  const auto written = ReadStore(**store);
  EXPECT_TRUE(IsOk(written) && *written == *read) << "the writer sees other steps";
  EXPECT_TRUE(IsOk((*store)->Verify(
      {}, [](const kv::Damage& damage) { ADD_FAILURE() << damage.error.ToString(); })));
  const auto leftovers = kv::testing::FindLeftovers(path);
  EXPECT_TRUE(IsOk(leftovers));
  EXPECT_THAT(leftovers.value_or(std::vector<std::string>()), ::testing::IsEmpty());
  EXPECT_TRUE(IsOk((*store)->Close()));
  return *read;
}

bool MayBeCommitted(const Error& error) {
  return error.message.find("unknown whether") != std::string::npos ||
         error.message.find("may or may not exist") != std::string::npos;
}

std::vector<SweptOperation> SweptOperations() {
  return {Open(),
          FirstSave(),
          SaveThatRemovesARoot(),
          SaveWith("save", 4, {.incremental = false}),
          SaveWith("incremental save", 4, {}),
          SaveWith("delta save", 4, {.max_deltas = 4}),
          SaveWith("compressed save", 4, {.compress = true}),
          SaveWith("overwrite", 2, {.overwrite = true}),
          {.name = "save by ranks", .prepare = PrepareHistory, .perform = SaveByRanks},
          Delete(),
          Prune(),
          Compaction(),
          Merge(),
          Mirror(),
          Pull(),
          Import()};
}

Result<void> RepeatedOperation::Prepare() {
  CAIRN_TRY(operation.prepare(directory + "/prepared"));
  CAIRN_TRY_ASSIGN(const StoreContents before, ReadStore(StoreIn("prepared")));
  StartAnew();
  const Outcome outcome = Perform(std::chrono::minutes(1));
  CAIRN_TRY(outcome.performed);
  CAIRN_TRY(outcome.closed);
  CAIRN_TRY_ASSIGN(const StoreContents after, ReadStore(StoreIn()));
  states = {before};
  // A copy of several steps is one commit per step, in their order.
  for (auto step = after.begin(); operation.commits > 1 && step != after.end(); ++step) {
    states.emplace_back(after.begin(), std::next(step));
  }
  if (operation.commits <= 1) states.push_back(after);
  return {};
}

void RepeatedOperation::StartAnew(const std::string& name) const {
  std::filesystem::remove_all(directory + "/" + name);
  std::filesystem::copy(directory + "/prepared", directory + "/" + name,
                        std::filesystem::copy_options::recursive);
}

}  // namespace cairn::testing
