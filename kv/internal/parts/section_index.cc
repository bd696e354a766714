#include "kv/internal/parts/section_index.h"

#include <algorithm>
#include <numeric>

#include "kv/div.h"

namespace cairn::kv::internal {

uint32_t SectionIndex::IdOf(const std::string& name) {
  // Most ranks have the same sections.
  for (size_t id = last_id_; id < std::min<size_t>(last_id_ + 3, names_.size()); ++id) {
    if (*names_[id] == name) return last_id_ = static_cast<uint32_t>(id);
  }
  const auto [found, is_new] = ids_.try_emplace(name, static_cast<uint32_t>(names_.size()));
  if (is_new) names_.push_back(&found->first);
  return last_id_ = found->second;
}

void SectionIndex::Add(uint32_t rank, const PartSection& section) {
  Section added{.read = {.rank = rank,
                         .data_object = section.data_object,
                         .offset_bytes = section.offset_bytes,
                         .stored_bytes = section.stored_bytes,
                         .chunk_count = section.chunk_count}};
  added.first = IdOf(section.first);
  added.last = IdOf(section.last);
  sections_.push_back(added);
  chunk_count_ += section.chunk_count;
}

std::vector<std::string> SectionIndex::Split(size_t count) const {
  std::vector<uint64_t> chunks(names_.size());  // of the sections that begin with the name
  for (const Section& section : sections_) chunks[section.first] += section.read.chunk_count;
  std::vector<uint32_t> order(names_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [this](uint32_t id) { return std::string_view(*names_[id]); });

  std::vector<std::string> begins = {""};
  uint64_t before = 0;  // chunks of the names before this one
  uint64_t last = 0;    // and before the last range
  for (const uint32_t id : order) {
    if (chunks[id] == 0) continue;
    // Each range has its share of what was left when it began: a tensor with more than a share
    // leaves less for the others. It ends before or after a name, where it is nearer to the share.
    const uint64_t left = count - begins.size() + 1;
    const uint64_t share = DivCeil(chunk_count_ - last, left);
    const uint64_t own = before - last;
    const uint64_t with = own + chunks[id];
    const bool ends_here = own >= share || (with > share && share - own <= with - share);
    if (left > 1 && own > 0 && ends_here) {
      begins.push_back(*names_[id]);
      last = before;
    }
    before += chunks[id];
  }
  return begins;
}

std::vector<SectionRead> SectionIndex::ReadsOf(std::string_view begin, std::string_view end) const {
  // Compares each name once, not once per section.
  std::vector<bool> is_before_end(names_.size());
  std::vector<bool> is_from_begin(names_.size());
  for (size_t id = 0; id < names_.size(); ++id) {
    is_before_end[id] = end.empty() || *names_[id] < end;
    is_from_begin[id] = *names_[id] >= begin;
  }
  std::vector<SectionRead> reads;
  for (const Section& section : sections_) {
    if (!is_before_end[section.first] || !is_from_begin[section.last]) continue;
    const SectionRead& read = section.read;
    if (!reads.empty() && reads.back().rank == read.rank &&
        reads.back().data_object == read.data_object &&
        reads.back().offset_bytes + reads.back().stored_bytes == read.offset_bytes) {
      reads.back().stored_bytes += read.stored_bytes;
      reads.back().chunk_count += read.chunk_count;
    } else {
      reads.push_back(read);
    }
  }
  return reads;
}

}  // namespace cairn::kv::internal
