#pragma once
/// Decodes parts of the trees that StructureRecords store.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/state_dict/state_dict.h"

namespace cairn::core::internal {

/// FQNs, each of which selects the leaf with this FQN and all leaves below it.
using LiteralKeys = std::set<std::string, std::less<>>;

/// A verified StructureRecord, with an index of its nodes (4 bytes each). Threads: safe; immutable.
class StoredTree {
 public:
  /// kDataLoss: `record` is not a StructureRecord, or its child counts do not add up.
  /// kUnimplemented: a newer version wrote it. Requires a record that is aligned to 8 bytes. Cost:
  /// a few walks over the record, without an object per node.
  static Result<std::shared_ptr<const StoredTree>> Open(std::vector<std::byte> record);

  /// Returns what PruneTree returns for the complete tree if the leaves that `literals` select are
  /// kept. Only these leaves can have errors that FlattenTree finds. Requires literals that are not
  /// empty.
  ///
  /// Cost: linear in the selected nodes, and in the children of the containers above them.
  StateTree Select(const LiteralKeys& literals) const;
  /// Whether the name of a key is not plain.
  bool has_forms() const;

 private:
  /// How a child is related to the literals.
  enum class Relation { kApart, kAbove, kSelected };
  /// The literals that may select something below one container: sorted, without the FQN of the
  /// container. They borrow from the literals.
  struct Rests {
    std::vector<std::string_view> keys;
    std::string_view common;  // the longest prefix of all of them

    explicit Rests(std::vector<std::string_view> sorted);
    /// Returns how the child of this name is related. `hint` is the result of After for the child
    /// before it, and is set to that for this one.
    Relation Relate(std::string_view name, size_t& hint) const;
    Rests Below(std::string_view name) const;

   private:
    /// Returns the index of the first key after `name`. Fast if it is `hint` or the next one.
    size_t After(std::string_view name, size_t hint) const;
  };
  struct Child {
    uint32_t node;
    Relation relation;  // kApart: it is a container that has no leaves
  };
  /// The children of a container that concern a selection, in tree order.
  struct Children {
    std::vector<Child> nodes;
    bool has_others = false;  // a child that has leaves is not among them
  };
  /// A container whose children are being added to the selection.
  struct Unfinished {
    Rests rests;
    Children children;
    size_t next;  // index in children.nodes
  };

  StoredTree(std::vector<std::byte> bytes, const schema::StructureRecord* record)
      : bytes_(std::move(bytes)), record_(record) {}
  Result<void> FindEnds();
  NodeKind KindOf(uint32_t node) const;
  Node NodeAt(uint32_t node) const { return internal::NodeAt(*record_, node); }
  std::string_view NameAt(uint32_t node, std::string& storage) const;
  uint32_t ChildCount(uint32_t node) const;
  bool HasLeaves(uint32_t node) const;
  Relation Relate(uint32_t node, const Rests& rests, size_t& hint) const;
  Children FindChildren(uint32_t container, const Rests& rests) const;

  const std::vector<std::byte> bytes_;
  const schema::StructureRecord* const record_;  // in bytes_
  std::vector<uint32_t> ends_;  // by node: the first node after it that is not below it
};

}  // namespace cairn::core::internal
