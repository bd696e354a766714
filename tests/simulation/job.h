#pragma once
/// A job of several ranks that save steps together: rank 0 opens the store, the others join its
/// session, and each writes a part of every step. Any of them may fail or be killed.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kv/step_writer.h"
#include "kv/store.h"
#include "tests/simulation/writer.h"

namespace cairn::simulation {

/// What the ranks agree on outside of the store, as jobs do when they start. Ownership: outlives
/// the ranks.
struct JobPlan {
  struct Save {
    uint64_t step = 0;
    uint64_t version = 0;
    bool overwrite = false;
    bool is_committed = false;  // rank 0 has performed it
  };

  uint32_t world_size = 2;
  int64_t patience_ns = 0;  // how long ranks wait for each other
  // Set by rank 0 when it has opened the store.
  std::string session;
  std::vector<Save> saves;
  bool has_begun = false;  // or rank 0 could not open the store
  // A rank has begun the next save without having seen the outcome of one, which rank 0 may commit
  // later. Then they compare with different steps.
  bool has_gone_on = false;
};

/// Rank 0 of a job.
class RankZero : public Writer {
 public:
  RankZero(World& world, const std::string& name, JobPlan& plan)
      : Writer(world, name), plan_(plan) {}
  void Run();

 private:
  void Begin();
  void Save(JobPlan::Save& save);

  JobPlan& plan_;
};

/// Another rank.
class OtherRank : public Participant {
 public:
  OtherRank(World& world, const std::string& name, JobPlan& plan, uint32_t rank)
      : Participant(world, name), plan_(plan), rank_(rank) {}
  void Run();

 private:
  bool Join();
  void Save(const JobPlan::Save& save);
  void AwaitDecision(kv::StepWriter& writer, const JobPlan::Save& save);
  void Judge(const std::string& call, const Error& error);

  JobPlan& plan_;
  const uint32_t rank_;
  std::unique_ptr<kv::Store> store_;
};

}  // namespace cairn::simulation
