#pragma once
/// Names of the objects that a store creates in numbers: segments, tables, pages and roots.
///
///   segments/<epoch>-<id>.seg    epoch of the writer as 8, id as 24 hexadecimal digits
///   tables/<epoch>-<id>.sst
///   pages/<epoch>-<id>.steps
///   roots/<2^64-1-n>.root        16 hexadecimal digits, so the newest root is the first by name
///
/// Digits are lower case, so each object has exactly one name. Threads: all functions here may run
/// on many threads at once.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::kv::internal {

/// Returns whether `name` is ".metadata", or elements of letters, digits, '.', '-' and '_' with '/'
/// between them, none of which is empty or begins with '.'.
bool IsObjectName(std::string_view name);
/// Returns whether `prefix` is empty, or a valid name followed by '/'.
bool IsObjectPrefix(std::string_view prefix);

/// Returns what Error::file contains for an object: the address of the storage, '/', and the name.
std::string ObjectPath(std::string_view address, std::string_view name);

/// Returns whether `text` consists of `digit_count` hexadecimal digits in lower case.
bool IsHexDigits(std::string_view text, size_t digit_count);
/// Returns whether `text` consists of decimal digits, at least one.
bool IsDecimal(std::string_view text);
/// Returns nothing if `text` is not a decimal number of at most 64 bits.
std::optional<uint64_t> ParseDecimal(std::string_view text);

/// Identifies one immutable object of a kind. Ids are random, so no two objects of a store have the
/// same.
struct ObjectId {
  uint32_t epoch = 0;    // the writer's epoch
  uint64_t id = 0;       // the first 64 bits, by which records refer to a segment of their store
  uint32_t id_tail = 0;  // the other 32 bits
  friend auto operator<=>(const ObjectId&, const ObjectId&) = default;
};

/// Returns a random number that no other call returns, in any process.
uint64_t NewUniqueNumber();
/// Returns an identifier that no other call returns, in any process.
ObjectId NewObjectId(uint32_t epoch);

enum class ObjectKind : uint8_t { kSegment, kTable, kPage };

/// Returns "segments/", "tables/" or "pages/".
std::string_view ObjectFolder(ObjectKind kind);
std::string ObjectName(ObjectKind kind, const ObjectId& id);

struct ParsedObjectName {
  ObjectKind kind = ObjectKind::kSegment;
  ObjectId id;
  friend bool operator==(const ParsedObjectName&, const ParsedObjectName&) = default;
};
/// Returns nothing if ObjectName returns `name` for no object.
std::optional<ParsedObjectName> ParseObjectName(std::string_view name);

/// The object that makes a prefix a store; put if absent.
inline constexpr std::string_view kIdentityName = "CAIRN";

inline constexpr std::string_view kRootFolder = "roots/";
inline constexpr std::string_view kPendingFolder = "pending/";
/// The folders in which a store has objects.
inline constexpr std::string_view kStoreFolders[] = {kRootFolder, "tables/",      "segments/",
                                                     "pages/",    kPendingFolder, "leases/"};

/// Length of the name of a session: the epoch in 8 hexadecimal digits, and 24 random ones.
inline constexpr size_t kSessionDigits = 32;
/// Returns whether a session may have this name.
bool IsSessionName(std::string_view name);
/// Returns whether an attempt may have this name: <session>-<step>-<counter>, where the last two
/// are decimal.
bool IsAttemptName(std::string_view name);

/// Returns the name of root `number`.
std::string RootName(uint64_t number);
/// Returns the number of a root; nothing if RootName returns `name` for no number.
std::optional<uint64_t> ParseRootName(std::string_view name);

}  // namespace cairn::kv::internal
