#include "kv/table/internal/record_run.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "kv/base/digest.h"
#include "kv/table/internal/table_writer.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kBlockWords = (2 << 20) / sizeof(uint64_t);
constexpr size_t kFirstListWords = (4 << 10) / sizeof(uint64_t);
constexpr size_t kMaxListWords = (256 << 10) / sizeof(uint64_t);
constexpr uint64_t kSimilar = uint64_t{1} << 63;
constexpr size_t kMaxSimilarWords = 63;
static_assert(kMaxTableRecordBytes < uint64_t{1} << 31);  // headers have no bit 63

/// Returns the column and the FQN with its NUL at the beginning of a key; the complete key if there
/// is no NUL. Names have the order of the keys: none is the beginning of another one, unless it is
/// a complete key.
std::string_view NameOf(std::string_view key) {
  const size_t end = key.find('\0', 1);
  return end == std::string_view::npos ? key : key.substr(0, end + 1);
}

uint64_t FirstBytes(std::string_view text) {
  std::array<char, sizeof(uint64_t)> bytes{};
  text.copy(bytes.data(), bytes.size());
  return ReadBigEndian(bytes.data());
}

/// Numbers names in the order in which they appear. Records are sorted by the number of their name
/// and the bytes that follow it, without a look at the records: keys of the same tensor begin with
/// the same long name.
class NameNumbers {
 public:
  size_t NumberOf(std::string_view name) {
    // Most often it is the last one, or the one that followed it in the records of another rank.
    for (size_t i = last_; i < std::min(last_ + 2, names_.size()); ++i) {
      if (names_[i] == name) return last_ = i;
    }
    last_ = numbers_.try_emplace(name, names_.size()).first->second;
    if (last_ == names_.size()) names_.push_back(name);
    return last_;
  }

  /// Returns the position of each name in the order of names, by its number.
  std::vector<size_t> Positions() const {
    std::vector<size_t> order(names_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order, {}, [this](size_t number) { return names_[number]; });
    std::vector<size_t> positions(names_.size());
    for (size_t i = 0; i < order.size(); ++i) positions[order[i]] = i;
    return positions;
  }

 private:
  std::vector<std::string_view> names_;  // by number
  std::unordered_map<std::string_view, size_t> numbers_;
  size_t last_ = 0;
};

/// A record of one name by its place in the order of keys.
struct SortedEntry {
  uint64_t first = 0;  // the bytes of the key that follow the name, as a big-endian number
  const uint64_t* words = nullptr;
};

bool Precedes(const SortedEntry& a, const SortedEntry& b) {
  if (a.first != b.first) return a.first < b.first;
  return RecordAt(a.words).key < RecordAt(b.words).key;
}

}  // namespace

void AppendRecord(std::vector<uint64_t>& words, std::string_view key,
                  std::span<const std::byte> value) {
  const uint64_t header = key.size() | uint64_t{value.size()} << 32;
  const size_t at = words.size();
  words.resize(at + RecordWords(header));
  uint64_t* const target = &words[at];
  target[0] = header;
  if (!key.empty()) std::memcpy(target + 1, key.data(), key.size());
  if (!value.empty()) std::memcpy(target + 1 + KeyWords(header), value.data(), value.size());
}

TableRecord RecordList::Add(Column column, std::string_view key, std::span<const std::byte> value) {
  uint64_t* const words = Append(1 + key.size(), value);
  auto* const key_bytes = reinterpret_cast<char*>(words + 1);
  key_bytes[0] = static_cast<char>(column);
  if (!key.empty()) std::memcpy(key_bytes + 1, key.data(), key.size());
  return RecordAt(words);
}

TableRecord RecordList::Add(const TableRecord& record) {
  uint64_t* const words = Append(record.key.size(), record.value);
  std::memcpy(words + 1, record.key.data(), record.key.size());
  return RecordAt(words);
}

/// Adds a record with a key that is not set yet, except for its padding.
uint64_t* RecordList::Append(size_t key_bytes, std::span<const std::byte> value) {
  const uint64_t header = key_bytes | uint64_t{value.size()} << 32;
  const size_t words = RecordWords(header);
  if (blocks_.empty() || blocks_.back().size_words - blocks_.back().used_words < words) {
    const size_t usual = std::clamp<size_t>(size_words_, kFirstListWords, kMaxListWords);
    Block& block = blocks_.emplace_back();
    block.size_words = std::max(usual, words);
    block.words = std::make_unique_for_overwrite<uint64_t[]>(block.size_words);
  }
  Block& block = blocks_.back();
  uint64_t* const target = &block.words[block.used_words];
  block.used_words += words;
  size_words_ += words;
  ++count_;
  target[0] = header;
  target[KeyWords(header)] = target[words - 1] = 0;  // the padding
  if (!value.empty()) std::memcpy(target + 1 + KeyWords(header), value.data(), value.size());
  return target;
}

void RecordList::Clear() {
  if (blocks_.size() > 1) blocks_.erase(blocks_.begin(), blocks_.end() - 1);
  if (!blocks_.empty()) blocks_.back().used_words = 0;
  count_ = 0;
  size_words_ = 0;
}

TableRecord RecordSet::Add(const TableRecord& record) {
  RecordList& records = columns_[record.column()];
  const uint64_t before = records.size_bytes();
  const TableRecord added = records.Add(record);
  size_bytes_ += records.size_bytes() - before;
  return added;
}

void RecordSet::Clear() {
  for (auto& [column, records] : columns_) records.Clear();
  size_bytes_ = 0;
}

bool RecordSet::IsInOrder(const RecordList& records) {
  std::string_view last_key;
  const auto follows = [&](const uint64_t* words) -> Result<void> {
    const std::string_view key = RecordAt(words).key;
    if (key < std::exchange(last_key, key)) return Fail(Error{});
    return {};
  };
  return records.ForEach(follows).has_value();
}

/// First by name, for which the position of each name is enough, then the records of each name.
/// These are mostly in order already: ranks and their chunks follow each other.
std::vector<const uint64_t*> RecordSet::Sort(const RecordList& records) {
  struct Numbered {
    size_t name = 0;
    SortedEntry entry;
  };
  std::vector<Numbered> numbered;
  numbered.reserve(records.count());
  NameNumbers names;
  (void)records.ForEach([&](const uint64_t* words) -> Result<void> {
    const std::string_view key = RecordAt(words).key;
    const std::string_view name = NameOf(key);
    numbered.push_back({.name = names.NumberOf(name),
                        .entry = {.first = FirstBytes(key.substr(name.size())), .words = words}});
    return {};
  });
  const std::vector<size_t> positions = names.Positions();
  std::vector<size_t> ends(positions.size() + 1);  // of the entries of each name, by its position
  for (const Numbered& record : numbered) ++ends[positions[record.name] + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<SortedEntry> entries(numbered.size());
  for (const Numbered& record : numbered) entries[ends[positions[record.name]]++] = record.entry;
  std::vector<const uint64_t*> sorted;
  sorted.reserve(entries.size());
  for (size_t i = 0, begin = 0; i < positions.size(); begin = ends[i++]) {
    const auto of_name = std::span(entries).subspan(begin, ends[i] - begin);
    if (!std::ranges::is_sorted(of_name, Precedes)) std::ranges::stable_sort(of_name, Precedes);
    for (const SortedEntry& entry : of_name) sorted.push_back(entry.words);
  }
  return sorted;
}

uint64_t RecordRun::size_bytes() const {
  uint64_t size_bytes = 0;
  for (const Block& block : blocks) size_bytes += block.size_bytes;
  return size_bytes;
}

Result<RecordRunWriter> RecordRunWriter::Create(Storage& storage, const ObjectId& id) {
  RecordRunWriter writer;
  writer.storage_ = &storage;
  writer.run_.id = id;
  CAIRN_TRY_ASSIGN(writer.object_, storage.Create(ObjectName(ObjectKind::kTable, id)));
  return writer;
}

Result<void> RecordRunWriter::Add(const TableRecord& record) {
  next_.clear();
  AppendRecord(next_, record.key, record.value);
  return Add(next_.data());
}

Result<void> RecordRunWriter::Add(const uint64_t* words) {
  const size_t count = RecordWords(*words);
  const size_t most_words = used_words_ + count;
  if (block_.size() < most_words) block_.resize(std::max(most_words, 2 * block_.size()));
  uint64_t* const target = &block_[used_words_];
  if (!last_.empty() && last_[0] == *words && count - 1 <= kMaxSimilarWords) {
    uint64_t mask = kSimilar;
    size_t used = 1;
    for (size_t i = 1; i < count; ++i) {
      const bool differs = words[i] != last_[i];
      mask |= uint64_t{differs} << (i - 1);
      target[used] = last_[i] = words[i];
      used += differs ? 1 : 0;
    }
    target[0] = mask;
    used_words_ += used;
  } else {
    std::copy_n(words, count, target);
    last_.assign(words, words + count);
    used_words_ += count;
  }
  return used_words_ < kBlockWords ? Result<void>() : EndBlock();
}

Result<void> RecordRunWriter::EndBlock() {
  const auto words = std::span(block_).first(std::exchange(used_words_, 0));
  size_bytes_ += words.size_bytes();
  RecordRun::Block& block = run_.blocks.emplace_back();
  block.size_bytes = words.size_bytes();
  if (object_ == nullptr) {
    block.words.assign(words.begin(), words.end());
    return {};
  }
  block.checksum = Checksum64(std::as_bytes(words));
  return object_->Append(std::as_bytes(words));
}

Result<RecordRun> RecordRunWriter::Finish() {
  if (used_words_ > 0) CAIRN_TRY(EndBlock());
  if (object_ != nullptr) {
    CAIRN_TRY(object_->Finish());
    CAIRN_TRY(CheckStored(*storage_, ObjectName(ObjectKind::kTable, *run_.id), size_bytes_));
  }
  size_bytes_ = 0;
  last_.clear();
  return std::exchange(run_, {});
}

Result<RecordRunReader> RecordRunReader::Open(std::shared_ptr<Storage> storage,
                                              const RecordRun& run) {
  RecordRunReader reader(run);
  if (run.id) {
    CAIRN_TRY_ASSIGN(reader.object_,
                     ObjectReader::Open(std::move(storage), ObjectName(ObjectKind::kTable, *run.id),
                                        run.size_bytes()));
  }
  CAIRN_TRY(reader.Next());
  return reader;
}

Result<void> RecordRunReader::Next() {
  if (rest_.empty()) {
    is_valid_ = next_block_ < run_->blocks.size();
    if (!is_valid_) return {};
    CAIRN_TRY(BeginBlock());
  }
  const uint64_t first = rest_.front();
  if ((first & kSimilar) != 0) {
    size_t used_words = 1;
    for (uint64_t mask = first & ~kSimilar; mask != 0; mask &= mask - 1) {
      current_[1 + static_cast<size_t>(std::countr_zero(mask))] = rest_[used_words++];
    }
    rest_ = rest_.subspan(used_words);
    return {};
  }
  const auto words = rest_.first(RecordWords(first));
  rest_ = rest_.subspan(words.size());
  current_.assign(words.begin(), words.end());
  record_ = RecordAt(current_.data());
  return {};
}

/// The checksum has been in memory since the block was written, so its records are as they were.
Result<void> RecordRunReader::BeginBlock() {
  const RecordRun::Block& block = run_->blocks[next_block_++];
  rest_ = block.words;
  if (!object_) return {};
  read_.resize(block.size_bytes / sizeof(uint64_t));
  rest_ = read_;
  const auto bytes = std::as_writable_bytes(std::span(read_));
  CAIRN_TRY(object_->ReadAt(offset_bytes_, bytes));
  if (Checksum64(bytes) != block.checksum) {
    return Fail(ErrorCode::kDataLoss, "temporary records of a step are not those that were written",
                object_->path(), offset_bytes_);
  }
  offset_bytes_ += block.size_bytes;
  return {};
}

}  // namespace cairn::kv::internal
