// Saves by many ranks, and loads on any mesh. Ranks are threads here; tests/process/ has similar
// tests with processes.
//
// CAIRN_MESH_ROUNDS (default 60) is the number of random rounds, of eight steps each;
// CAIRN_TEST_SEED repeats a run.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "core/async_save.h"
#include "core/checkpoint_store.h"
#include "core/state_dict/internal/tree_merge.h"
#include "tests/core/sharded_state.h"
#include "tests/support/checked_communicator.h"
#include "tests/support/thread_communicator.h"

namespace cairn::core {
namespace {

using cairn::testing::CheckedCommunicator;
using cairn::testing::IsError;
using cairn::testing::IsOk;
using cairn::testing::RunRanks;
using cairn::testing::ScopedTempDir;
using cairn::testing::SeededRandom;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace cairn::core::testing;  // NOLINT(google-build-using-namespace)

/// A number of bytes by rank.
using BytesByRank = std::vector<uint64_t>;
uint64_t Sum(const BytesByRank& bytes) { return std::reduce(bytes.begin(), bytes.end()); }

std::shared_ptr<const DeviceMesh> MeshOf(std::vector<DeviceMesh::Dim> dims,
                                         std::vector<uint32_t> ranks = {}) {
  return std::make_shared<const DeviceMesh>(*DeviceMesh::Make(std::move(dims), std::move(ranks)));
}

/// The box of `view` that begins at `offset` of a tensor of one dimension.
Sharding Part(uint64_t size, uint64_t offset, const TensorView& view) {
  return {.global_shape = {size},
          .mesh = nullptr,
          .placements = {},
          .parts = {{.box = {{offset}, view.shape}, .view = view}}};
}

StateDict ShardedState(const std::string& fqn, const TensorView& view, Sharding sharding) {
  StateDict state;
  state.root().Sharded(fqn, view, std::move(sharding));
  return state;
}

Sharding Halves(uint64_t size, std::shared_ptr<const DeviceMesh> mesh) {
  return {.global_shape = {size},
          .mesh = std::move(mesh),
          .placements = {Placement::Shard(0)},
          .parts = {}};
}

class SharedSaveTest : public ::testing::Test {
 protected:
  ScopedTempDir directory_{std::filesystem::exists("/dev/shm") ? "/dev/shm" : ""};

  std::string path() const { return directory_.path() + "/store"; }

  /// Calls `use` with the store of each rank, which is then closed.
  void OnRanks(int ranks, const std::function<void(CheckpointStore& store)>& use,
               kv::OpenMode mode = kv::OpenMode::kWrite) {
    RunRanks(ranks, [&](Communicator& communicator) { OnRank(communicator, use, mode); });
  }
  void OnRank(Communicator& communicator, const std::function<void(CheckpointStore& store)>& use,
              kv::OpenMode mode = kv::OpenMode::kWrite) {
    CAIRN_ASSERT_OK_AND_ASSIGN(const auto store,
                               CheckpointStore::OpenShared(path(), mode, communicator));
    use(*store);
    EXPECT_TRUE(IsOk(store->Close()));
  }

  /// Each rank saves what it holds of `globals`. Returns what they have written.
  BytesByRank SaveAll(uint64_t step, int ranks, const std::vector<GlobalTensor>& globals,
                      const std::vector<Layout>& layouts, const SaveOptions& options = {}) {
    BytesByRank written(static_cast<size_t>(ranks));
    OnRanks(ranks, [&](CheckpointStore& store) {
      written[store.rank()] = SaveOn(store, step, globals, layouts, options);
    });
    return written;
  }

  /// Each rank loads its part and compares it with `globals`. Returns what they have read.
  BytesByRank LoadAll(uint64_t step, int ranks, const std::vector<GlobalTensor>& globals,
                      const std::vector<Layout>& layouts, const ShardLoadOptions& options = {}) {
    BytesByRank read(static_cast<size_t>(ranks));
    const auto load = [&](CheckpointStore& store) {
      read[store.rank()] = LoadOn(store, step, globals, layouts, options, /*gap=*/0);
    };
    OnRanks(ranks, load, kv::OpenMode::kRead);
    return read;
  }

  /// Each rank saves `state_of(rank)`.
  void SaveStates(int ranks, const std::function<StateDict(uint32_t rank)>& state_of,
                  const SaveOptions& options = {}) {
    OnRanks(ranks, [&](CheckpointStore& store) {
      EXPECT_TRUE(IsOk(store.Save(1, state_of(store.rank()), options)));
    });
    EXPECT_THAT(VerifyAll(), IsEmpty());
  }

  std::vector<Error> VerifyAll() {
    std::vector<Error> found;
    const auto store = CheckpointStore::Open(path(), kv::OpenMode::kRead);
    EXPECT_TRUE(IsOk(store));
    EXPECT_TRUE(IsOk(
        (*store)->Verify({}, [&](const kv::Damage& damage) { found.push_back(damage.error); })));
    return found;
  }

  /// Saves on all ranks, which must fail with `key` and a message that contains all of `parts`.
  void ExpectErrors(int ranks, const std::string& key, const std::vector<std::string>& parts,
                    const std::function<StateDict(uint32_t rank)>& state_of) {
    for (const Error& error : SaveErrors(ranks, state_of)) {
      EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(error.key, key);
      for (const std::string& part : parts) EXPECT_THAT(error.message, HasSubstr(part));
    }
  }

  /// Saves on all ranks, which must fail; returns the errors by rank.
  std::vector<Error> SaveErrors(int ranks, const std::function<StateDict(uint32_t rank)>& state_of,
                                const SaveOptions& options = {}) {
    std::vector<Error> errors(static_cast<size_t>(ranks));
    OnRanks(ranks, [&](CheckpointStore& store) {
      const auto report = store.Save(1, state_of(store.rank()), options);
      EXPECT_FALSE(report.has_value()) << "rank " << store.rank();
      if (!report) errors[store.rank()] = report.error();
    });
    const auto store = CheckpointStore::Open(path(), kv::OpenMode::kWrite);
    EXPECT_TRUE(IsOk(store));
    EXPECT_THAT(*(*store)->Steps(), IsEmpty());
    return errors;
  }
};

int Rounds() {
  const char* const rounds = std::getenv("CAIRN_MESH_ROUNDS");
  return rounds != nullptr ? std::atoi(rounds) : 60;
}

TEST_F(SharedSaveTest, WhatAnyMeshSavedAnyMeshLoads) {
  constexpr uint64_t kStepsARound = 8;
  SeededRandom random;
  fmt::print("CAIRN_TEST_SEED={}\n", random.seed());
  uint64_t tensors = 0;
  for (int round = 0; round < Rounds(); ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    std::filesystem::remove_all(path());
    const auto save_ranks = static_cast<uint32_t>(random.Between(1, 8));
    const auto load_ranks = static_cast<uint32_t>(random.Between(1, 8));
    std::vector<MeshCase> cases;
    for (uint64_t step = 0; step < kStepsARound; ++step) {
      cases.emplace_back(save_ranks, load_ranks, random);
      tensors += cases.back().globals.size();
    }
    OnRanks(static_cast<int>(save_ranks), [&](CheckpointStore& store) {
      for (uint64_t step = 0; step < kStepsARound; ++step) {
        const MeshCase& one = cases[step];
        SaveOn(store, step, one.globals, one.saved, one.save_options);
      }
    });
    if (HasFailure()) return;
    const auto load = [&](CheckpointStore& store) {
      for (uint64_t step = 0; step < kStepsARound; ++step) {
        const MeshCase& one = cases[step];
        LoadOn(store, step, one.globals, one.loaded, one.load_options, one.gap);
      }
    };
    OnRanks(static_cast<int>(load_ranks), load, kv::OpenMode::kRead);
    if (HasFailure()) return;
    if (round % 10 == 0) {
      ASSERT_THAT(VerifyAll(), IsEmpty());
    }
  }
  fmt::print("{} steps of {} tensors\n", Rounds() * kStepsARound, tensors);
}

TEST_F(SharedSaveTest, UnchangedChunksAreReusedEvenIfAnotherRankWroteThem) {
  std::vector<GlobalTensor> globals = {{"w", TestTensor(DType::kFloat32, {64, 1024})}};
  const auto mesh = [](uint32_t n) { return MeshOf({{"dp", n}}); };
  const SaveOptions options{.chunk_bytes = 32 << 10};  // eight rows
  const Layout rows{.mesh = mesh(4), .placements = {Placement::Shard(0)}, .boxes = {}};
  const Layout replicas{.mesh = mesh(2), .placements = {Placement::Replicate()}, .boxes = {}};
  EXPECT_EQ(Sum(SaveAll(1, 4, globals, {rows}, options)), 256u << 10);
  EXPECT_EQ(Sum(SaveAll(2, 2, globals, {replicas}, options)), 0u);
  EXPECT_THAT(VerifyAll(), IsEmpty());
  LoadAll(2, 3, globals, {{.mesh = mesh(3), .placements = {Placement::Shard(1)}, .boxes = {}}});
}

// A transformer: 12 layers of width 512.
std::vector<GlobalTensor> Transformer(uint64_t words) {
  std::vector<GlobalTensor> globals;
  globals.push_back({"wte", TestTensor(DType::kBFloat16, {words, 512})});
  for (int layer = 0; layer < 12; ++layer) {
    const auto add = [&](const std::string& name, Shape shape) {
      globals.push_back(
          {fmt::format("h.{}.{}", layer, name), TestTensor(DType::kBFloat16, std::move(shape))});
    };
    add("ln_1", {512});
    add("attn", {1536, 512});
    add("proj", {512, 512});
    add("ln_2", {512});
    add("up", {2048, 512});
    add("down", {512, 2048});
  }
  return globals;
}

TEST_F(SharedSaveTest, ReplicasShareTheWritingEvenly) {
  for (const uint64_t words : {2000, 16'000}) {
    const std::vector<GlobalTensor> globals = Transformer(words);
    std::vector<Layout> layouts(globals.size());
    for (Layout& layout : layouts) layout.plain = true;
    std::filesystem::remove_all(path());
    const BytesByRank written = SaveAll(1, 8, globals, layouts, {.chunk_bytes = 256 << 10});
    uint64_t total = 0;
    for (const GlobalTensor& global : globals) total += global.tensor.bytes.size();
    EXPECT_EQ(Sum(written), total) << "each byte is written once";
    // At most 1.1 of the mean, or one tensor that is longer than that.
    EXPECT_LE(std::ranges::max(written),
              std::max(total / 8 * 11 / 10, globals[0].tensor.bytes.size()));
  }
}

TEST_F(SharedSaveTest, RanksMayHaveTheirTensorsInDifferentOrders) {
  const TestTensor large(DType::kFloat32, {30, 100}), small(DType::kUInt8, {700});
  const auto state_of = [&](uint32_t rank) {
    StateDict state;
    if (rank == 1) state.root().Tensor("b", small.view());
    state.root().Tensor("a", large.view());
    if (rank != 1) state.root().Tensor("b", small.view());
    return state;
  };
  SaveStates(3, state_of, {.chunk_bytes = 400});
}

TEST_F(SharedSaveTest, ARankThatIsNotOnTheMeshSavesNothingOfTheTensor) {
  const TestTensor half(DType::kUInt8, {2});
  const Sharding sharding = Halves(4, MeshOf({{"shard", 2}}));
  SaveStates(3, [&](uint32_t rank) {
    StateDict state;
    const TensorView none{.dtype = DType::kUInt8, .shape = {0}};
    state.root().Sharded("w", rank < 2 ? half.view() : none, sharding);
    return state;
  });
}

TEST_F(SharedSaveTest, MeshesThatDoNotFitAreRefused) {
  const TestTensor local(DType::kUInt8, {3});
  const auto mesh = MeshOf({{"shard", 2}});
  const auto errors =
      SaveErrors(2, [&](uint32_t) { return ShardedState("w", local.view(), Halves(4, mesh)); });
  for (const Error& error : errors) EXPECT_EQ(error.key, "w");
  const auto lacks = SaveErrors(3, [](uint32_t) { return StateDict(); }, {.replicated_mesh = mesh});
  EXPECT_THAT(lacks[2].message, HasSubstr("replicated_mesh lacks rank 2"));
}

TEST_F(SharedSaveTest, RanksThatMakeMoreObjectsOfTheSameMeshAgreeWithThoseThatMakeOne) {
  const TestTensor tensor(DType::kInt32, {40, 10});
  const auto make_mesh = [] { return MeshOf({{"a", 2}, {"b", 2}}); };
  const auto state_of = [&](uint32_t rank) {
    const auto one = make_mesh();
    StateDict state;
    for (int i = 0; i < 6; ++i) {
      state.root().Sharded(fmt::format("w{}", i), tensor.view(),
                           {.global_shape = {40, 10},
                            .mesh = rank == 2 ? make_mesh() : one,
                            .placements = {Placement::Replicate(), Placement::Replicate()},
                            .parts = {}});
    }
    return state;
  };
  SaveStates(4, state_of, {.chunk_bytes = 100});
}

TEST_F(SharedSaveTest, PipelineStagesHoldDifferentKeys) {
  const TestTensor first(DType::kInt16, {10}), second(DType::kInt16, {7});
  const auto stage_mesh = [](std::vector<uint32_t> ranks) {
    return MeshOf({{"stage", 2}}, std::move(ranks));
  };
  OnRanks(4, [&](CheckpointStore& store) {
    const bool late = store.rank() >= 2;
    StateDict state;
    auto model = state.root().Map("model");
    model.Tensor(late ? "b" : "a", (late ? second : first).view());
    auto about = state.root().Map("about");
    about.Value(fmt::format("stage of {}", store.rank()), int64_t{late});
    about.Value("common", std::string("same"));
    EXPECT_TRUE(IsOk(
        store.Save(3, state, {.replicated_mesh = late ? stage_mesh({2, 3}) : stage_mesh({0, 1})})));
  });
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, CheckpointStore::Open(path(), kv::OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(3));
  std::vector<std::string> keys;
  for (const TensorInfo& tensor : contents.tensors) keys.push_back(tensor.fqn);
  EXPECT_THAT(keys, ::testing::ElementsAre("model.a", "model.b"));
  EXPECT_THAT(contents.values, SizeIs(5));
  EXPECT_EQ(contents.step.world_size, 4u);
  EXPECT_EQ(contents.step.tensor_count, 2u);
  EXPECT_EQ(contents.step.logical_bytes, 34u);
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(SharedSaveTest, TiedShardedWeightsAreStoredOnceAndLoadOnAnyMesh) {
  const std::vector<GlobalTensor> globals = {{"wte", TestTensor(DType::kFloat32, {13, 9})}};
  const auto mesh = MeshOf({{"tp", 4}});
  const Layout columns{.mesh = mesh, .placements = {Placement::Shard(1)}, .boxes = {}};
  std::vector<std::unique_ptr<LocalTensor>> locals;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    locals.push_back(std::make_unique<LocalTensor>(globals[0].tensor, columns, rank));
    locals.back()->FillFrom(globals[0].tensor, rank);
  }
  SaveStates(4, [&](uint32_t rank) {
    StateDict state;
    state.root().Sharded("wte", locals[rank]->view(), locals[rank]->sharding());
    state.root().Sharded("lm_head", locals[rank]->view(), locals[rank]->sharding());
    return state;
  });
  CAIRN_ASSERT_OK_AND_ASSIGN(const auto store, CheckpointStore::Open(path(), kv::OpenMode::kRead));
  CAIRN_ASSERT_OK_AND_ASSIGN(const Contents contents, store->List(1));
  EXPECT_EQ(contents.step.logical_bytes, globals[0].tensor.bytes.size());
  for (const char* fqn : {"wte", "lm_head"}) {
    TestTensor whole(DType::kFloat32, {13, 9}, 99);
    const LoadRequest request = WholeRequest(fqn, whole);
    CAIRN_ASSERT_OK(store->Load(contents.step, {&request, 1}));
    EXPECT_EQ(whole.bytes, globals[0].tensor.bytes) << fqn;
  }
  LoadAll(1, 3, {{"lm_head", globals[0].tensor}},
          {{.mesh = MeshOf({{"x", 3}}), .placements = {Placement::Shard(0)}, .boxes = {}}},
          {.read_once = true});
}

TEST_F(SharedSaveTest, ReadOnceReadsEachByteOnceForAllReplicas) {
  const std::vector<GlobalTensor> globals = {{"w", TestTensor(DType::kFloat32, {256, 4096})},
                                             {"x", TestTensor(DType::kUInt8, {3'000'000})}};
  const auto save_mesh = MeshOf({{"dp", 4}});
  const Layout rows{.mesh = save_mesh, .placements = {Placement::Shard(0)}, .boxes = {}};
  SaveAll(1, 4, globals, {rows, rows}, {.chunk_bytes = 512 << 10});
  const auto mesh = MeshOf({{"replica", 2}, {"tp", 2}});
  const Layout halves{
      .mesh = mesh, .placements = {Placement::Replicate(), Placement::Shard(0)}, .boxes = {}};
  const Layout plain{.mesh = nullptr, .placements = {}, .boxes = {}, .plain = true};
  constexpr uint64_t total = (4 << 20) + 3'000'000;
  const uint64_t once = Sum(LoadAll(1, 4, globals, {halves, plain}, {.read_once = true}));
  EXPECT_GE(once, total);
  EXPECT_LE(once, total + total / 100);
  EXPECT_GE(Sum(LoadAll(1, 4, globals, {halves, plain})), uint64_t{2 * (4 << 20) + 4 * 3'000'000});
}

TEST_F(SharedSaveTest, NothingButFilesPassesBetweenOpeningAndCommit) {
  const TestTensor tensor(DType::kFloat32, {100, 30});
  RunRanks(4, [&](Communicator& threads) {
    CheckedCommunicator communicator(threads);
    OnRank(communicator, [&](CheckpointStore& store) {
      const uint64_t of_opening = communicator.call_count();
      EXPECT_GT(of_opening, 0u);
      const StateDict state = StateOf({{"w", tensor.view()}});
      for (uint64_t step = 0; step < 3; ++step) EXPECT_TRUE(IsOk(store.Save(step, state)));
      {
        AsyncSaver saver(&store);
        for (uint64_t step = 3; step < 6; ++step) {
          CAIRN_ASSERT_OK_AND_ASSIGN(const SaveReport report, SaveAndWait(saver, step, state));
          EXPECT_EQ(report.chunks_reused, report.chunks);
        }
      }
      EXPECT_EQ(communicator.call_count(), of_opening) << "a save has made a collective";
    });
  });
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(SharedSaveTest, AnAsyncSaveThatFailsOnOneRankFailsOnAll) {
  const TestTensor tensor(DType::kFloat32, {100, 30});
  OnRanks(3, [&](CheckpointStore& store) {
    const StateDict good = StateOf({{"w", tensor.view()}});
    const StateDict bad = StateOf({{"w", {.dtype = DType::kFloat32, .shape = {1}}}});
    AsyncSaver saver(&store);
    const auto handle = saver.Save(1, store.rank() == 1 ? bad : good);
    if (store.rank() == 1) {
      EXPECT_THAT(handle, IsError(ErrorCode::kInvalidArgument, "null pointer"));
    } else {
      ASSERT_TRUE(IsOk(handle));
      EXPECT_THAT(handle->Wait(), IsError(ErrorCode::kInvalidArgument, "rank 1: "));
    }
    const auto next = saver.Save(1, good);
    ASSERT_TRUE(IsOk(next));
    EXPECT_TRUE(IsOk(next->Wait()));
  });
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

// A rank reads the complete 64 KiB pages that its boxes touch, because a page is checked as a unit.
TEST_F(SharedSaveTest, LoadsOnFewerOrMoreRanksReadHardlyMoreThanTheyNeed) {
  const std::vector<GlobalTensor> rows = {{"even", TestTensor(DType::kBFloat16, {4096, 1024})},
                                          {"uneven", TestTensor(DType::kUInt8, {9'999'991})}};
  const std::vector<GlobalTensor> columns = {
      {"columns", TestTensor(DType::kBFloat16, {1024, 4096})}};
  const auto cut = [](size_t tensors, uint32_t ranks, uint32_t dim) {
    const auto mesh = MeshOf({{"tp", ranks}});
    return std::vector<Layout>(tensors,
                               {.mesh = mesh, .placements = {Placement::Shard(dim)}, .boxes = {}});
  };
  SaveAll(1, 4, rows, cut(2, 4, 0));
  SaveAll(2, 4, columns, cut(1, 4, 1));
  const auto read_share = [&](uint64_t step, uint32_t ranks,
                              const std::vector<GlobalTensor>& globals, uint32_t dim) {
    uint64_t total = 0;
    for (const GlobalTensor& global : globals) total += global.tensor.bytes.size();
    const auto read =
        Sum(LoadAll(step, static_cast<int>(ranks), globals, cut(globals.size(), ranks, dim)));
    const double share = static_cast<double>(read) / static_cast<double>(total);
    EXPECT_GE(share, 1.0);
    return share;
  };
  for (const uint32_t ranks : {1u, 2u, 4u, 8u}) {
    EXPECT_LE(read_share(1, ranks, rows, 0), 1.05) << ranks;
  }
  // Half the width of a stored shard: every page contains some of each half, so both ranks read
  // all.
  EXPECT_LE(read_share(2, 2, columns, 1), 1.05);
  EXPECT_LE(read_share(2, 8, columns, 1), 2.05);
}

// Ranks that do not make the same load.

class ReadOnceTest : public SharedSaveTest {
 protected:
  void SetUp() override {
    Layout plain;
    plain.plain = true;
    SaveAll(1, 4, globals_, {plain, plain});
    SaveAll(2, 4, {{"w", x_}, {"x", w_}}, {plain, plain});
  }

  /// One of four ranks, two steps, and the targets of a load.
  struct Rank {
    CheckpointStore& store;
    kv::StepInfo first, second;
    TestTensor w{DType::kUInt8, {3'000}, 98};
    TestTensor x{DType::kUInt8, {3'000}, 99};
  };
  using Load = std::function<Result<LoadReport>(Rank&)>;
  /// Returns the code of the load's error by rank; nothing if it succeeds, with the right bytes.
  std::vector<std::optional<ErrorCode>> CodesOf(const Load& load) {
    std::vector<std::optional<ErrorCode>> codes(4);
    const auto on_rank = [&](CheckpointStore& store) {
      const auto snapshot = *store.kv().Latest();
      Rank rank{.store = store, .first = *snapshot->FindStep(1), .second = *snapshot->FindStep(2)};
      if (const auto loaded = load(rank); !loaded) {
        codes[store.rank()] = loaded.error().code;
        return;
      }
      EXPECT_EQ(rank.w.bytes, w_.bytes);
      EXPECT_EQ(rank.x.bytes, x_.bytes);
    };
    OnRanks(4, on_rank, kv::OpenMode::kRead);
    return codes;
  }

  static ShardTarget Whole(const std::string& fqn, TestTensor& tensor) {
    return {.fqn = fqn, .sharding = nullptr, .local = tensor.target()};
  }

  const TestTensor w_{DType::kUInt8, {3'000}, 1};
  const TestTensor x_{DType::kUInt8, {3'000}, 2};
  const std::vector<GlobalTensor> globals_ = {{"w", w_}, {"x", x_}};
};

TEST_F(ReadOnceTest, RanksThatAreNotOfAMeshTakePartAllTheSame) {
  const Sharding sharding{.global_shape = {3'000},
                          .mesh = MeshOf({{"stage", 2}}, {2, 3}),
                          .placements = {Placement::Replicate()},
                          .parts = {}};
  const auto load = [&](Rank& rank) {
    const ShardTarget targets[] = {{.fqn = "w", .sharding = &sharding, .local = rank.w.target()},
                                   Whole("x", rank.x)};
    auto report = rank.store.LoadShards(rank.first, targets, {.read_once = true});
    if (rank.store.rank() < 2) rank.w.bytes = w_.bytes;  // which they do not hold
    return report;
  };
  EXPECT_THAT(CodesOf(load), Each(std::nullopt));
}

TEST_F(ReadOnceTest, LoadsThatDifferAreRefusedOnAllRanks) {
  const Load other_step = [](Rank& rank) {
    const ShardTarget targets[] = {Whole("w", rank.w), Whole("x", rank.x)};
    return rank.store.LoadShards(rank.store.rank() == 0 ? rank.first : rank.second, targets,
                                 {.read_once = true});
  };
  const Load other_order = [](Rank& rank) {
    ShardTarget targets[] = {Whole("w", rank.w), Whole("x", rank.x)};
    if (rank.store.rank() == 1) std::swap(targets[0], targets[1]);
    return rank.store.LoadShards(rank.first, targets, {.read_once = true});
  };
  const Load fewer_tensors = [](Rank& rank) {
    std::vector<ShardTarget> targets;
    if (rank.store.rank() != 3) targets = {Whole("w", rank.w), Whole("x", rank.x)};
    return rank.store.LoadShards(rank.first, targets, {.read_once = true});
  };
  const Load other_shape = [](Rank& rank) {  // also if each rank reads for itself
    TestTensor small(DType::kUInt8, {10});
    const ShardTarget target = Whole("w", small);
    return rank.store.LoadShards(rank.first, {&target, 1}, {});
  };
  for (const Load& load : {other_step, other_order, fewer_tensors, other_shape}) {
    EXPECT_THAT(CodesOf(load), Each(ErrorCode::kInvalidArgument));
  }
}

TEST_F(ReadOnceTest, AnErrorInALaterWindowIsReportedOnAllRanks) {
  const auto load = [](Rank& rank) {
    const ShardTarget targets[] = {Whole("w", rank.w), Whole("x", rank.x)};
    int calls = 0;
    const auto stop_later = [&](uint64_t, uint64_t) {
      return rank.store.rank() != 2 || ++calls < 4;
    };
    return rank.store.LoadShards(rank.first, targets,
                                 {.read_once = true, .window_bytes = 100, .progress = stop_later});
  };
  EXPECT_THAT(CodesOf(load), Each(ErrorCode::kCancelled));
}

// Ranks whose states disagree.

TEST_F(SharedSaveTest, DTypesThatDifferFailOnEveryRankWithKeyAndRanks) {
  const TestTensor floats(DType::kFloat32, {4}), halves(DType::kFloat16, {4});
  ExpectErrors(
      3, "model.w", {"rank 0 holds it as float32 [4]", "rank 2 as float16 [4]"},
      [&](uint32_t rank) { return StateOf({{"model.w", (rank == 2 ? halves : floats).view()}}); });
}

TEST_F(SharedSaveTest, ShapesThatDifferNameTheBoxes) {
  const auto mesh = MeshOf({{"dp", 2}});
  const TestTensor five(DType::kInt32, {5}), four(DType::kInt32, {4});
  ExpectErrors(2, "w",
               {"rank 0 holds it as int32 [10], rank 1 as int32 [8]",
                "rank 0's box at [0] of sizes [5]", "rank 1's box at [4] of sizes [4]"},
               [&](uint32_t rank) {
                 return ShardedState("w", (rank == 0 ? five : four).view(),
                                     Halves(rank == 0 ? 10 : 8, mesh));
               });
}

TEST_F(SharedSaveTest, ElementsThatNobodyWroteAreNamed) {
  const TestTensor local(DType::kInt32, {5});
  ExpectErrors(2, "x", {"no rank wrote element [10] of shape [20]"}, [&](uint32_t rank) {
    return ShardedState("x", local.view(), Part(20, rank * 5u, local.view()));
  });
}

TEST_F(SharedSaveTest, BoxesThatOverlapNameRanksAndBoxes) {
  const TestTensor local(DType::kInt32, {6});
  ExpectErrors(2, "x", {"rank 0's box at [0] of sizes [6]", "rank 1's box at [4] of sizes [6]"},
               [&](uint32_t rank) {
                 return ShardedState("x", local.view(), Part(10, rank * 4u, local.view()));
               });
}

TEST_F(SharedSaveTest, ATensorThatNoRankWritesBecauseOneLacksItIsNamed) {
  const std::vector<TestTensor> tensors(8, TestTensor(DType::kInt32, {6}));  // one per rank
  const auto errors = SaveErrors(8, [&](uint32_t rank) {
    StateDict state;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (rank != 3 || i != 0) state.root().Tensor(fmt::format("w{}", i), tensors[i].view());
    }
    return state;
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message,
                AnyOf(HasSubstr("no rank wrote"), HasSubstr("written by more than one")));
  }
}

// {"v": first 8 of 12 elements, "w": last 8}: their memory is stored under another name.
StateDict OverlappingState(const TestTensor& tensor) {
  return StateOf({{"v", {DType::kUInt8, {8}, {}, tensor.bytes.data()}},
                  {"w", {DType::kUInt8, {8}, {}, tensor.bytes.data() + 4}}});
}

TEST_F(SharedSaveTest, MemoryIsNotNamedLikeALongValue) {
  const TestTensor tensor(DType::kUInt8, {12});
  SaveStates(2, [&](uint32_t rank) {
    StateDict state = OverlappingState(tensor);
    state.root().Value("v.__storage__", std::string(rank == 0 ? 5'000 : 5, 'x'));
    state.root().Value("v.__storage___", std::string(5'000, 'y'));
    return state;
  });
}

TEST_F(SharedSaveTest, MemoryNamedLikeALongValueOfAnotherRankIsRefused) {
  const TestTensor tensor(DType::kUInt8, {12});
  for (const uint32_t with_value : {0u, 1u}) {
    for (const size_t length : {12, 5'000}) {
      ExpectErrors(2, "v.__storage__", {"memory that tensors share"}, [&](uint32_t rank) {
        StateDict state = rank == with_value ? StateDict() : OverlappingState(tensor);
        if (rank == with_value) state.root().Value("v.__storage__", std::string(length, 'x'));
        return state;
      });
    }
  }
}

TEST_F(SharedSaveTest, ALongValueThatIsATensorOfItsBytesElsewhereIsRefused) {
  const TestTensor tensor(DType::kUInt8, {5'000});
  ExpectErrors(2, "x", {"a plain value on one rank and a tensor on another"}, [&](uint32_t rank) {
    if (rank == 1) return StateOf({{"x", tensor.view()}});
    StateDict state;
    state.root().Value("x", Bytes{tensor.bytes});
    return state;
  });
}

TEST_F(SharedSaveTest, ALongValueIsLeftToRank0OnlyIfThatHasIt) {
  const Value whole = std::string(5'000, 'x');
  const auto state_of = [&](uint32_t rank, const std::string& key_on_first) {
    StateDict state;
    state.root().Value(rank == 0 ? key_on_first : "v", rank == 0 ? whole : *WithoutBytes(whole));
    return state;
  };
  ExpectErrors(2, "v", {"rank 1 left its bytes to rank 0, which lacks it"},
               [&](uint32_t rank) { return state_of(rank, "w"); });
  SaveStates(2, [&](uint32_t rank) { return state_of(rank, "v"); });
}

TEST_F(SharedSaveTest, TheReportOfRank0CountsTheLongValuesOfOthers) {
  BytesByRank written(2);
  OnRanks(2, [&](CheckpointStore& store) {
    StateDict state;
    state.root().Value(fmt::format("v{}", store.rank()), std::string(5'000 + store.rank(), 'x'));
    CAIRN_ASSERT_OK_AND_ASSIGN(const SaveReport report, store.Save(1, state, {.compress = false}));
    written[store.rank()] = report.written_bytes;
  });
  EXPECT_EQ(written, (BytesByRank{10'001, 0}));
}

TEST_F(SharedSaveTest, ALeafThatIsATensorHereAndAValueThereIsRefused) {
  const TestTensor tensor(DType::kInt32, {6});
  ExpectErrors(2, "model.x", {"a plain value on one rank and a tensor on another"},
               [&](uint32_t rank) {
                 StateDict state;
                 auto model = state.root().Map("model");
                 if (rank == 0) {
                   model.Value("x", int64_t{1});
                 } else {
                   model.Sharded("x", tensor.view(), Part(6, 0, tensor.view()));
                 }
                 return state;
               });
}

TEST_F(SharedSaveTest, ARankWhoseStateIsBadFailsAllAtOnceAndTheNextSaveWorks) {
  const TestTensor tensor(DType::kInt32, {6});
  OnRanks(4, [&](CheckpointStore& store) {
    const StateDict bad =
        StateOf({{"x", {.dtype = DType::kInt32, .shape = {6}, .strides = {1, 1}}}});
    const StateDict good = StateOf({{"x", tensor.view()}});
    const auto report = store.Save(1, store.rank() == 2 ? bad : good);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(report.error().key, "x");
    EXPECT_THAT(report.error().message,
                store.rank() == 2 ? HasSubstr("2 strides") : HasSubstr("rank 2: 2 strides"));
    EXPECT_TRUE(IsOk(store.Save(1, good)));
  });
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(SharedSaveTest, AnExistingStepIsRefusedOnAllRanksAndOverwrittenIfAsked) {
  const TestTensor tensor(DType::kInt32, {60});
  OnRanks(3, [&](CheckpointStore& store) {
    const StateDict state = StateOf({{"x", tensor.view()}});
    EXPECT_TRUE(IsOk(store.Save(5, state)));
    EXPECT_THAT(store.Save(5, state), IsError(ErrorCode::kConflict, "already exists"));
    EXPECT_TRUE(IsOk(store.Save(5, state, {.overwrite = true})));
  });
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(SharedSaveTest, ARankThatNeverSavesIsNamedAtTheDeadline) {
  const TestTensor tensor(DType::kInt32, {60});
  OnRanks(3, [&](CheckpointStore& store) {
    const StateDict state = StateOf({{"x", tensor.view()}});
    if (store.rank() != 1) {
      EXPECT_THAT(store.Save(5, state, {.deadline = std::chrono::milliseconds(200)}),
                  IsError(ErrorCode::kUnavailable, store.rank() == 0 ? "at the deadline: 1" : ""));
    }
  });
}

TEST_F(SharedSaveTest, SharedMemoryThatDiffersBetweenRanksIsRefused) {
  const Sharding sharding = Halves(2000, MeshOf({{"tp", 2}}));
  const TestTensor a(DType::kUInt8, {1000}, 1), b(DType::kUInt8, {1000}, 2);
  ExpectErrors(2, "tied",
               {"rank 0 holds it as uint8 [2000] in the memory of "
                "'a'",
                "rank 1 as uint8 [2000] in the memory of 'b'"},
               [&](uint32_t rank) {
                 StateDict state;
                 state.root().Sharded("a", a.view(), sharding);
                 state.root().Sharded("b", b.view(), sharding);
                 state.root().Sharded("tied", (rank == 0 ? a : b).view(), sharding);
                 return state;
               });
}

TEST_F(SharedSaveTest, OneKeyByTwoPathsIsRefused) {
  const auto errors = SaveErrors(2, [&](uint32_t rank) {
    StateDict state;
    if (rank == 0) {
      state.root().Value("a.b", int64_t{1});
    } else {
      state.root().Map("a").Value("b", int64_t{2});
    }
    return state;
  });
  for (const Error& error : errors) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.ToString(), HasSubstr("a.b"));
  }
}

TEST_F(SharedSaveTest, SavesThatAreUnderWayTogetherRunInOneOrderOnAllRanks) {
  const TestTensor tensor(DType::kInt32, {60});
  OnRanks(4, [&](CheckpointStore& store) {
    const StateDict state = StateOf({{"x", tensor.view()}});
    AsyncSaver saver(&store);
    for (uint64_t i = 0; i < 20; ++i) {
      const auto handle = saver.Save(2 * i, state);
      ASSERT_TRUE(IsOk(handle));
      EXPECT_TRUE(IsOk(store.Save(2 * i + 1, state)));
      EXPECT_TRUE(IsOk(handle->Wait()));
    }
  });
  EXPECT_THAT(VerifyAll(), IsEmpty());
}

TEST_F(SharedSaveTest, ARankThatLeftASaveOutFailsThatStepOnly) {
  const TestTensor tensor(DType::kInt32, {60});
  OnRanks(2, [&](CheckpointStore& store) {
    const StateDict state = StateOf({{"x", tensor.view()}});
    if (store.rank() == 0) {
      EXPECT_FALSE(store.Save(1, state, {.deadline = std::chrono::milliseconds(50)}));
    }
    EXPECT_TRUE(IsOk(store.Save(2, state)));
  });
}

TEST_F(SharedSaveTest, RanksWithKeysOfTheirOwnAreMergedInLinearTime) {
  constexpr int kRanks = 4'000;
  internal::TreeMerge merge;
  for (int rank = 0; rank < kRanks; ++rank) {
    StateDict state;
    auto model = state.root().Map("model");
    for (int i = 0; i < 20; ++i) model.Value(fmt::format("layer.{}.{}", rank, i), int64_t{1});
    state.root().List("all").Value("", int64_t{1});
    EXPECT_TRUE(IsOk(merge.Add(state.tree)));
  }
  const StateTree tree = merge.Take();
  EXPECT_THAT(tree.nodes, SizeIs(3 + 20 * kRanks + 1));
}

TEST_F(SharedSaveTest, RanksThatSeeOtherDirectoriesDoNotOpen) {
  RunRanks(2, [&](Communicator& communicator) {
    const std::string where = fmt::format("{}-{}", path(), communicator.rank());
    {
      const auto made = CheckpointStore::Open(where, kv::OpenMode::kWrite);
    }
    EXPECT_TRUE(IsOk(communicator.Barrier()));
    for (const auto mode : {kv::OpenMode::kWrite, kv::OpenMode::kRead}) {
      const auto store = CheckpointStore::OpenShared(where, mode, communicator);
      ASSERT_FALSE(store.has_value());
      EXPECT_THAT(store.error().message, HasSubstr("the same directory"));
    }
  });
  // A copy has the same uuid.
  std::filesystem::remove_all(path() + "-1");
  std::filesystem::copy(path() + "-0", path() + "-1", std::filesystem::copy_options::recursive);
  RunRanks(2, [&](Communicator& communicator) {
    const std::string where = fmt::format("{}-{}", path(), communicator.rank());
    EXPECT_THAT(CheckpointStore::OpenShared(where, kv::OpenMode::kWrite, communicator),
                IsError(ErrorCode::kFailedPrecondition, "the same directory"));
  });
}

TEST_F(SharedSaveTest, OpeningFailsOnAllRanksIfItFailsOnOne) {
  RunRanks(3, [&](Communicator& communicator) {
    // Rank 2 opens another directory, which is not a store.
    const std::string where = communicator.rank() == 2 ? path() + "-elsewhere" : path();
    const auto store = CheckpointStore::OpenShared(where, kv::OpenMode::kWrite, communicator);
    ASSERT_FALSE(store);
    EXPECT_THAT(store.error().message, HasSubstr("there is no store here"));
  });
}

}  // namespace
}  // namespace cairn::core
