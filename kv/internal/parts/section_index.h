#pragma once
/// The sections of all parts of an attempt, and how their keys are divided into ranges. Rank 0 has
/// it from the indexes of the parts, without reading a chunk.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/internal/parts/part_file.h"

namespace cairn::kv::internal {

/// Bytes of one data object of one part that a merging rank reads: sections that follow each other.
struct SectionRead {
  uint32_t rank = 0;
  uint32_t data_object = 0;
  uint64_t offset_bytes = 0;
  uint64_t stored_bytes = 0;
  uint64_t chunk_count = 0;
  friend bool operator==(const SectionRead&, const SectionRead&) = default;
};

/// Memory: 40 bytes per section, and the names of the tensors with which sections begin or end.
/// Threads: one.
class SectionIndex {
 public:
  /// Sections of one object are added in their order.
  void Add(uint32_t rank, const PartSection& section);
  uint64_t chunk_count() const { return chunk_count_; }

  /// Divides the keys into at most `count` ranges with about equal numbers of chunks. Returns the
  /// name of the tensor with which each begins, ascending; the first is empty. A tensor is in one
  /// range. Depends on nothing but the sections.
  std::vector<std::string> Split(size_t count) const;

  /// Returns the reads of all sections that have tensors of a range, in the order of the ranks.
  /// `end` is the name with which the next range begins; empty: there is none.
  std::vector<SectionRead> ReadsOf(std::string_view begin, std::string_view end) const;

 private:
  struct Section {
    SectionRead read;
    uint32_t first = 0;  // in names_
    uint32_t last = 0;
  };
  uint32_t IdOf(const std::string& name);

  std::vector<Section> sections_;
  std::vector<const std::string*> names_;  // in ids_
  std::unordered_map<std::string, uint32_t> ids_;
  uint32_t last_id_ = 0;  // of the last section
  uint64_t chunk_count_ = 0;
};

}  // namespace cairn::kv::internal
