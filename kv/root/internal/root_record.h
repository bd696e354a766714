#pragma once
/// Roots and pages: what a store records about its steps (schema/root.fbs).
///
/// Encoders check their output by decoding it. Decoders survive any bytes; they return kDataLoss
/// for a damaged object and kUnimplemented for one of a newer version. Threads: all functions here
/// may run on many threads at once.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/base/annotations.h"
#include "kv/base/error.h"
#include "kv/base/retention.h"
#include "kv/base/step_info.h"
#include "kv/storage/internal/object_names.h"
#include "kv/table/internal/table_file.h"

namespace cairn::kv::internal {

/// The process that writes to a store, as roots and the lease name it for error messages.
struct WriterIdentity {
  std::string host;
  uint32_t pid = 0;
  std::string session;
  int64_t since_unix_ns = 0;  // when it opened the store for writing
  friend bool operator==(const WriterIdentity&, const WriterIdentity&) = default;
};

/// Returns this process, as the writer of `session` since now.
WriterIdentity ThisWriter(std::string session);
/// Returns "process 17 on host n1 (writer since 2026-01-31 12:00:00 UTC)". Without a pid, it is
/// the writer of a root of which only the identity can be decoded.
std::string Describe(const WriterIdentity& writer);

std::string HostName();
int64_t NowUnixNs();
/// Returns "2026-01-31 12:00:00 UTC".
std::string FormatUtc(int64_t unix_ns);

// --- what a program must know to read a store, and to write it (docs/format/compatibility.md)

inline constexpr size_t kMaxFeatures = 64;
inline constexpr size_t kMaxFeatureBytes = 64;

/// Names, ascending. This build knows none yet, so a list in a store is one of a newer build.
struct Features {
  std::vector<std::string> read;
  std::vector<std::string> write;  // of those that may be unknown to a reader
  friend bool operator==(const Features&, const Features&) = default;
};

/// Returns whether the names are valid, ascending, and not too many.
bool AreFeatures(std::span<const std::string> names);

/// kUnimplemented: a feature is unknown; names all that are.
Result<void> CheckCanRead(const Features& features);
/// kUnimplemented: a feature is unknown. `file` is the object that lists them.
Result<void> CheckCanWrite(const Features& features, std::string file);

// --- roots and pages

using Uuid = std::array<std::byte, 16>;
/// Returns 16 random bytes.
Uuid NewUuid();
/// Returns 32 hexadecimal digits.
std::string UuidText(const Uuid& uuid);

/// The bytes of one segment that a step uses.
struct SegmentUse {
  ObjectId segment;
  uint64_t live_bytes = 0;
  friend bool operator==(const SegmentUse&, const SegmentUse&) = default;
};

/// The usage of a step is in its entry only if it names at most this number of segments.
inline constexpr size_t kMaxInlineSegments = 16;

/// A step that the store contains.
struct StepEntry {
  StepInfo info;                  // its generation is the number of the root that added the step
  std::vector<TableInfo> tables;  // newest first, at most kMaxTables
  std::vector<SegmentUse> usage;
  bool usage_in_tables = false;  // `usage` is empty: the tables contain it
};

/// Entries never change, so a root, the pages in memory and snapshots share them.
using StepEntryPtr = std::shared_ptr<const StepEntry>;

/// A page, and its steps that still exist.
struct PageRef {
  ObjectId id;
  uint64_t file_bytes = 0;
  uint64_t digest = 0;          // Checksum64 of the object
  std::vector<uint64_t> steps;  // ascending, never empty
  friend bool operator==(const PageRef&, const PageRef&) = default;
};

/// An object that no step reaches any more.
struct RemovedObject {
  std::string name;
  int64_t since_unix_ns = 0;
  uint64_t file_bytes = 0;
  friend bool operator==(const RemovedObject&, const RemovedObject&) = default;
};

/// The contents of the store from commit `number` on.
struct Root {
  uint64_t number = 0;  // the first root of a store has number 1
  Uuid commit_id{};
  Uuid store_uuid{};
  uint32_t epoch = 0;
  WriterIdentity writer;
  int64_t created_unix_ns = 0;
  std::vector<StepEntryPtr> recent;  // ascending by step; contains the highest of all steps
  std::vector<PageRef> pages;        // no step is in two pages, or in a page and in `recent`
  std::vector<RemovedObject> removed;
  Tags tags;                  // each of a step that exists
  RetentionPolicy retention;  // saves apply it; if it keeps nothing, there is none
  bool compress = false;      // saves that do not state otherwise compress chunks
  /// Objects of earlier epochs are never removed as garbage. A rebuild sets it, so that nothing is
  /// lost that it could not read.
  uint32_t kept_before_epoch = 0;
  /// The checksum of the object from which the root was decoded; not a field of the record.
  std::optional<uint64_t> checksum;
  /// The commit id of root `number` - 1. Nothing only in the first root of a store or of a rebuild.
  std::optional<Uuid> predecessor;
  Features features;  // in addition to those of CAIRN
};

/// kResourceExhausted: the root is longer than 64 MiB. DecodeRoot returns kUnimplemented, too, if
/// the root lists a read feature that this build does not know.
Result<std::vector<std::byte>> EncodeRoot(const Root& root);
Result<Root> DecodeRoot(std::span<const std::byte> object);
/// Decodes only the fields that no feature changes: `number`, `commit_id`, `store_uuid`,
/// `predecessor` and `features`, which this build need not know.
Result<Root> DecodeRootIdentity(std::span<const std::byte> object);

/// Requires entries in ascending order of their steps. kResourceExhausted: the page is longer than
/// 64 MiB.
Result<std::vector<std::byte>> EncodePage(std::span<const StepEntryPtr> entries);
Result<std::vector<StepEntryPtr>> DecodePage(std::span<const std::byte> object);

}  // namespace cairn::kv::internal
