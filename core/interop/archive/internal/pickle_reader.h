#pragma once
/// Python pickles as trees of values. Nothing is imported, called or run: a class or function is
/// its name, a call is a node that says what would be called. Whoever reads the tree decides which
/// names mean something.
///
/// Understood are the opcodes of protocols 2 to 5 (Lib/pickletools.py of CPython describes each).
/// The pickle is hostile input: every node costs at least a byte of it, and a node may stand in
/// several places or contain itself, so that readers must bound how deep and how often they go.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"

namespace cairn::core::internal {

/// Longer pickles are refused, as are those of more values than kMaxPickleNodes.
inline constexpr uint64_t kMaxPickleBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMaxPickleNodes = uint64_t{1} << 26;

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,   // fits in 64 bits
  kLong,  // does not
  kFloat,
  kText,
  kBytes,
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,      // "module.name"
  kPersistent,  // something outside the pickle, named by a value
  kObject,      // a call and what was put into its result
};

/// A node of one tree.
using PickleRef = uint32_t;

/// Ownership: borrows the pickle's bytes. Threads: immutable.
class PickleTree {
 public:
  /// kDataLoss: no pickle or a damaged one, with the byte. kUnimplemented: an opcode of protocols 0
  /// and 1, of extensions or of buffers outside the pickle. kResourceExhausted: too large. Memory:
  /// up to 100 bytes for a byte of a hostile pickle, some 20 for those that torch writes.
  static Result<PickleTree> Parse(std::span<const std::byte> pickle);

  PickleRef root() const { return root_; }
  PickleKind kind(PickleRef ref) const { return nodes_[ref].kind; }
  /// Of the pickle.
  uint64_t source_bytes() const { return pickle_.size(); }

  // Each requires its kind.
  bool truth(PickleRef ref) const { return nodes_[ref].data != 0; }
  int64_t integer(PickleRef ref) const { return static_cast<int64_t>(nodes_[ref].data); }
  double real(PickleRef ref) const;
  /// UTF-8, lone surrogates as three bytes.
  std::string_view text(PickleRef ref) const;
  /// Of kBytes; of kLong: two's complement, little-endian.
  std::span<const std::byte> bytes(PickleRef ref) const;
  /// "torch.Size".
  const std::string& global(PickleRef ref) const { return globals_[nodes_[ref].data]; }
  /// What names the thing of kPersistent.
  PickleRef persistent_id(PickleRef ref) const { return static_cast<PickleRef>(nodes_[ref].data); }
  /// Elements of kTuple, kList, kSet; key, value, key, value of kDict.
  std::span<const PickleRef> children(PickleRef ref) const;

  struct Object {
    PickleRef callee = 0;
    PickleRef arguments = 0;  // any node: a tuple where a sane writer made it
    bool has_state = false;
    PickleRef state = 0;              // as given to __setstate__
    std::vector<PickleRef> elements;  // appended
    std::vector<PickleRef> items;     // key, value, ... set
  };
  const Object& object(PickleRef ref) const { return objects_[nodes_[ref].data]; }

  /// Each class and function that the pickle names, once.
  const std::vector<std::string>& globals() const { return globals_; }

 private:
  friend class PickleParser;
  struct Node {
    PickleKind kind = PickleKind::kNone;
    uint32_t count = 0;  // bytes of text and bytes, elements of a tuple
    uint64_t data = 0;   // the value itself, or where it begins
  };
  PickleTree() = default;

  std::span<const std::byte> pickle_;
  PickleRef root_ = 0;
  std::vector<Node> nodes_;
  std::vector<PickleRef> tuple_elements_;
  std::vector<std::vector<PickleRef>> containers_;  // of lists, dicts and sets
  std::vector<Object> objects_;
  std::vector<std::string> globals_;
};

}  // namespace cairn::core::internal
