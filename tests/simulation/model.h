#pragma once
/// What a store must contain: the states after each root, computed from the operations that put
/// them and not from the bytes of the store.
///
/// The storage reports every root that is put, with the operation that puts it, at the moment when
/// it is put. Each root of the chain 1, 2, 3, ... applies its operation to the state before it. So
/// the model knows of every operation whether it was performed, whatever its caller learns.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kv/base/error.h"
#include "kv/read/snapshot.h"
#include "kv/root/internal/root_record.h"

namespace cairn::simulation {

struct ModelStep {
  uint64_t version = 0;     // determines the contents (kv::testing::MakeSample)
  uint64_t generation = 0;  // number of the root that added it
  // As the root states them. A step without a parent continues from the one below it.
  int64_t saved_unix_ns = 0;
  std::string attempt = {};
  std::optional<kv::ParentStep> parent = {};
  bool is_edit_of_itself = false;
  friend bool operator==(const ModelStep&, const ModelStep&) = default;
};

struct State {
  std::map<uint64_t, ModelStep> steps;
  std::map<std::string, uint64_t> tags;  // to steps
  uint64_t keep_last = 0;                // 0: saves delete nothing
  bool compresses = false;

  /// Adds a step that `root` has. It is one of its recent steps.
  void Add(uint64_t step, uint64_t version, const kv::internal::Root& root);
  /// Adds the step, and deletes those that the policy does not keep: it keeps steps on the line.
  void Save(uint64_t step, uint64_t version, const kv::internal::Root& root);
  void Delete(uint64_t step);
  /// Returns the step that follows on the line of `step`: its parent, or, if that does not exist
  /// any more, the one that was saved last before it, below both.
  std::optional<uint64_t> Before(uint64_t step) const;
  friend bool operator==(const State&, const State&) = default;
};

/// Something that a process does to the store and that may put roots.
struct Operation {
  std::string name;
  uint64_t writer = 0;  // one number per open for writing
  bool opens = false;   // it may follow a root of another writer
  bool moves_payload = false;
  std::function<void(State&, const kv::internal::Root&)> apply;
  /// Whether this root of the operation changes the state; null: each does. A copy puts others
  /// before.
  std::function<bool(const kv::internal::Root&)> takes_effect;
  int64_t begin_ns = 0;
  std::vector<uint64_t> roots;  // of the chain that it has put
};

/// Finds violations, which `fail` receives.
class Model {
 public:
  using Report = std::function<void(const std::string&)>;
  /// `grace_ns`: how long objects of deleted steps remain at least.
  Model(Report fail, int64_t grace_ns);

  /// Adds an operation, which lives as long as the model.
  Operation& Begin(Operation operation);
  /// A root was put by `operation`, or by nobody who should.
  void RootPut(uint64_t number, Operation* operation, std::span<const std::byte> bytes);
  /// An object that is never replaced was put.
  void ObjectPut(const std::string& name);

  /// Returns the number of the newest root, 0 if there is none.
  uint64_t newest() const { return roots_.size() - 1; }
  const State& StateAt(uint64_t root) const { return roots_[root].state; }
  /// Returns whether another writer has put a root since `operation` of a writer that is open.
  bool IsFenced(const Operation& operation) const;

  /// Checks a result of `operation`: it is performed if it succeeded, and not performed if it
  /// failed, unless the error states that this is unknown.
  void CheckOutcome(const Operation& operation, const Error* error);
  /// Finds the root of a snapshot among those from `oldest` on. Reports a state that never existed,
  /// or that is older.
  std::optional<uint64_t> FindRoot(const kv::Snapshot& snapshot, uint64_t oldest);
  /// Returns whether objects of a step of the snapshot at `root` may be gone at `now_ns`.
  bool MayBeGone(uint64_t root, uint64_t step, int64_t now_ns) const;

 private:
  struct RootState {
    State state;
    const Operation* operation = nullptr;  // null: the state before root 1
  };

  const Report fail_;
  const int64_t grace_ns_;
  std::deque<Operation> operations_;
  std::deque<RootState> roots_{1};  // by number
  std::set<std::string> put_names_;
};

/// Returns whether the error states that the operation may have been performed.
bool IsUnknown(const Error& error);
/// Returns whether a save refers to a step that was deleted or replaced since it began.
bool IsOfBase(const Error& error);
std::string Describe(const State& state);

}  // namespace cairn::simulation
