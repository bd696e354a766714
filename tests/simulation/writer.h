#pragma once
/// A writer: opens the store, changes it a few times, and closes it, is killed, or finds out that
/// another writer has taken over.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kv/store.h"
#include "tests/simulation/participant.h"

namespace cairn::simulation {

/// What a writer does besides random operations.
enum class Role : uint8_t {
  kUsual,
  kOvertaken,      // is paused before and after it puts a root
  kAlsoOvertaken,  // takes over from the former, and is paused before it puts a root
  kOvertaker,      // takes over, and commits so often that the roots before its own are removed
};

/// One process that opens the store for writing.
class Writer : public Participant {
 public:
  Writer(World& world, const std::string& name, Role role = Role::kUsual);
  void Run();

 protected:
  /// Opens the store. Tries again for a while if another writer has it.
  bool Open();
  Operation NewOperation(const std::string& name) const;
  Operation SaveOf(uint64_t step, uint64_t version, bool overwrite) const;
  /// Checks the error of an operation that began after `fault_count` faults, and whether this
  /// writer can continue.
  void Judge(const Operation& operation, const Error& error, uint64_t fault_count);
  void Close();

  kv::Store& store() { return *store_; }
  bool can_continue() { return !is_over_ && !is_dead(); }
  /// Returns a step of the newest state that this writer knows, if there is any.
  std::optional<uint64_t> AnyStep();
  uint64_t NewStep();

 private:
  bool TryOpen(bool take_over);
  void Act();
  // With the archive.
  void UseArchive();
  void CopyFromArchive();
  void CopyToArchive();
  void Change(Operation operation, const std::function<Result<void>()>& change);
  void Save();
  void Delete();
  void Prune();
  void Tag();
  void Compact();
  void SetCompression();
  /// So many commits that old roots are removed, and steps move to pages.
  void ChangeOften();
  /// Saves while another thread compacts the store.
  void SaveDuringCompaction();

  const uint64_t id_;
  const Role role_;
  std::unique_ptr<kv::Store> store_;
  bool is_over_ = false;
  bool is_unknown_ = false;  // whether an operation was performed
  bool has_two_threads_ = false;
};

}  // namespace cairn::simulation
