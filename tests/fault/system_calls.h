#pragma once
/// The point through which every operation on a file passes: the functions of the C library that
/// open, read, change, sync or name files. A program that links system_calls.cc has its own
/// versions of them, below all other code, also that of RocksDB. A test can make a call fail or
/// transfer only a part of its bytes, and sees what each call has changed. Programs without this
/// file are not concerned.
///
/// io_uring does not call the C library, so stores that are observed use threads
/// (kv::IoOptions::uring).

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace cairn::testing {

enum class SystemCall : uint8_t {
  kOpen,  // of a file or directory
  kRead,
  kWrite,
  kSync,
  kAllocate,
  kTruncate,
  kLink,
  kRename,
  kRemove,  // of a file or directory
  kMakeDirectory,
};
const char* SystemCallName(SystemCall call);

/// What happens instead of the call, or to it.
struct CallFault {
  int error_number = 0;   // nothing is performed, and the call fails
  bool is_short = false;  // a read or write of more than one byte transfers half of them
};

/// What a call has changed. Paths are absolute. Inodes identify files whatever their names are.
struct FileChange {
  enum class Kind : uint8_t { kCreate, kWrite, kResize, kSync, kLink, kRename, kRemove };
  Kind kind = Kind::kWrite;
  std::string path;
  std::string to;      // of kLink and kRename
  uint64_t inode = 0;  // of `path`
  bool is_directory = false;
  uint64_t offset_bytes = 0;
  std::string bytes;        // of kWrite
  uint64_t size_bytes = 0;  // after kResize
};

/// Sees the calls for files below one directory while it exists. At most one may exist. Its members
/// are called by one thread at a time, and calls for these files wait for each other.
class CallObserver {
 public:
  explicit CallObserver(std::string root);
  virtual ~CallObserver();
  CallObserver(const CallObserver&) = delete;
  CallObserver& operator=(const CallObserver&) = delete;

  const std::string& root() const { return root_; }
  virtual CallFault Before(SystemCall call, const std::string& path) = 0;
  virtual void After(FileChange) {}

 private:
  const std::string root_;
};

/// Records all changes.
class ChangeRecorder final : public CallObserver {
 public:
  using CallObserver::CallObserver;
  CallFault Before(SystemCall, const std::string&) override { return {}; }
  void After(FileChange change) override { changes_.push_back(std::move(change)); }
  const std::vector<FileChange>& changes() const { return changes_; }

 private:
  std::vector<FileChange> changes_;
};

/// Makes one call, or that call and all later ones, fail.
class FailingCalls final : public CallObserver {
 public:
  enum class Extent : uint8_t { kOnce, kForGood };
  /// Calls to which the fault cannot happen are not counted: EMFILE happens to opens, EINTR to
  /// opens, transfers and syncs, ENOSPC and EDQUOT to what needs space, a short transfer to reads
  /// and writes. `error_number` 0 is a short transfer. Calls are counted from 1.
  FailingCalls(std::string root, uint64_t n, int error_number, Extent extent);
  CallFault Before(SystemCall call, const std::string& path) override;
  bool fired() const { return fired_; }
  /// "write segments/...", the first call that failed.
  const std::string& fired_at() const { return fired_at_; }

 private:
  const uint64_t n_;
  const int error_number_;
  const Extent extent_;
  uint64_t count_ = 0;
  bool fired_ = false;
  std::string fired_at_;
};

}  // namespace cairn::testing
