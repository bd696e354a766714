#pragma once
/// Python pickles as trees of values. Nothing is imported, called or run: a class or function is
/// represented by its name, and a call by a node that states what would be called. The reader of
/// the tree decides which names have a meaning.
///
/// A pickle is hostile input. Every node costs at least one byte of it, and a node may occur in
/// several places or contain itself, so readers must bound both their depth and their work.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"

namespace cairn::core::internal {

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,   // fits in 64 bits
  kLong,  // does not fit
  kFloat,
  kText,
  kBytes,
  kTuple,
  kList,
  kDict,
  kSet,
  kGlobal,      // a class or function: "module.name"
  kPersistent,  // an object outside the pickle, identified by a value
  kObject,      // a call, and what was put into its result
};

/// Index of a node of one tree.
using PickleRef = uint32_t;

/// The values of one pickle; ReadPickle (pickle_reader.h) builds it.
///
/// Every accessor requires a node of the kind that it documents, and checks this.
/// Ownership: borrows the pickle's bytes. Threads: immutable.
class PickleTree {
 public:
  PickleRef root() const { return root_; }
  PickleKind kind(PickleRef ref) const { return nodes_[ref].kind; }
  /// Length of the pickle in bytes.
  uint64_t source_bytes() const { return pickle_.size(); }

  /// kBool.
  bool truth(PickleRef ref) const { return DataOf(ref, PickleKind::kBool) != 0; }
  /// kInt.
  int64_t integer(PickleRef ref) const {
    return static_cast<int64_t>(DataOf(ref, PickleKind::kInt));
  }
  /// kFloat.
  double real(PickleRef ref) const;
  /// kText: UTF-8, in which surrogates are encoded as three bytes.
  std::string_view text(PickleRef ref) const;
  /// kBytes; kLong: two's complement, little-endian; kText.
  std::span<const std::byte> bytes(PickleRef ref) const;
  /// kGlobal: for example "torch.Size".
  const std::string& global(PickleRef ref) const {
    return globals_[DataOf(ref, PickleKind::kGlobal)];
  }
  /// kPersistent: the value that identifies the object.
  PickleRef persistent_id(PickleRef ref) const {
    return static_cast<PickleRef>(DataOf(ref, PickleKind::kPersistent));
  }
  /// kTuple, kList, kSet: the elements. kDict: key, value, key, value, ...
  std::span<const PickleRef> children(PickleRef ref) const;

  struct Object {
    PickleRef callee = 0;
    PickleRef arguments = 0;  // any node; a tuple in pickles that Python wrote
    bool has_state = false;
    PickleRef state = 0;              // the argument of __setstate__
    std::vector<PickleRef> elements;  // values that were appended
    std::vector<PickleRef> items;     // key, value, ... that were set
  };
  /// kObject.
  const Object& object(PickleRef ref) const { return objects_[DataOf(ref, PickleKind::kObject)]; }

  /// Each class and function that the pickle names, once.
  const std::vector<std::string>& globals() const { return globals_; }

 private:
  friend class PickleMachine;
  struct Node {
    PickleKind kind = PickleKind::kNone;
    uint32_t count = 0;  // bytes of text and bytes, elements of a tuple
    uint64_t data = 0;   // the value itself, or the position where it begins
  };
  PickleTree() = default;

  uint64_t DataOf(PickleRef ref, PickleKind kind) const {
    CAIRN_CHECK(nodes_[ref].kind == kind);
    return nodes_[ref].data;
  }

  std::span<const std::byte> pickle_;
  PickleRef root_ = 0;
  std::vector<Node> nodes_;
  std::vector<PickleRef> tuple_elements_;
  std::vector<std::vector<PickleRef>> containers_;  // of lists, dicts and sets
  std::vector<Object> objects_;
  std::vector<std::string> globals_;
};

}  // namespace cairn::core::internal
