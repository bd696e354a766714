#pragma once
/// What a disk may contain after a power failure, for a program whose changes of files were
/// recorded (tests/fault/system_calls.h).
///
/// The only promises are those of POSIX: fsync and fdatasync make the contents of a file durable,
/// and fsync of a directory makes the names in it durable. Everything else may or may not have
/// happened, in any order; a write may be torn at 512 bytes, and the size of a file may have
/// changed without its bytes.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fault/system_calls.h"
#include "tests/support/seeded_random.h"

namespace cairn::testing {

/// The bytes of a file, and their digest.
struct FileBytes {
  explicit FileBytes(std::string bytes_in);
  std::string bytes;
  uint64_t digest = 0;
};

/// The files below a directory, by path relative to it ("/store/CAIRN").
using DiskImage = std::map<std::string, std::shared_ptr<const FileBytes>>;

/// Replaces what is below `directory`.
void WriteImage(const DiskImage& image, const std::string& directory);
/// A number that differs if the images differ.
uint64_t DigestOf(const DiskImage& image);

/// Applies recorded changes, and computes images. Threads: one.
class DiskModel {
 public:
  /// Everything that exists below `root` is durable.
  explicit DiskModel(std::string root);

  void Apply(const FileChange& change);
  /// All changes: what other processes see, and what remains if the process is killed.
  DiskImage All() const;
  /// Only what is durable. Names that were removed without a sync exist.
  DiskImage Durable() const;
  /// All names, and zeros instead of bytes that are not durable.
  DiskImage NamesOnly() const;
  /// What is durable, and by chance some of the other changes, in any order.
  DiskImage Mixture(SeededRandom& random) const;

 private:
  using Bytes = std::shared_ptr<const FileBytes>;
  struct Write {
    uint64_t offset_bytes = 0;
    std::string bytes;
  };
  struct File {
    std::string bytes;            // with all changes
    mutable Bytes cached;         // of them; null: not computed
    Bytes durable;                // null: the file was never synced
    std::vector<Write> unsynced;  // writes after the last sync
  };
  struct Name {
    uint64_t inode = 0;
    bool is_directory = false;
  };
  using Names = std::map<std::string, Name>;  // by relative path
  /// One or two names that change together.
  struct NameChange {
    std::string removed;
    std::string added;
    Name name;
  };

  void ChangeName(NameChange change);
  void SyncDirectory(const std::string& path);
  std::string Relative(const std::string& path) const { return path.substr(root_.size()); }
  Bytes BytesOf(const File& file) const;
  Bytes MixedBytes(const File& file, SeededRandom& random) const;
  template <typename BytesOfFile>
  DiskImage ImageOf(const Names& names, const BytesOfFile& bytes_of) const;

  const std::string root_;
  std::map<uint64_t, File> files_;  // by inode
  Names names_;
  Names durable_names_;
  std::vector<NameChange> unsynced_names_;
};

}  // namespace cairn::testing
