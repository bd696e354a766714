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

size_t RecordSet::Add(std::string_view key, std::span<const std::byte> value) {
  const auto column = static_cast<uint8_t>(key.front());
  std::optional<size_t>& last = last_[column];
  if (last && key < At(*last).key) is_in_order_ = false;
  const size_t position = words_.size();
  last = position;
  AppendRecord(words_, key, value);
  return position;
}

void RecordSet::Clear() {
  words_.clear();
  last_ = {};
  is_in_order_ = true;
}

std::vector<RecordSet::Entry> RecordSet::SortedEntries() const {
  std::vector<Entry> entries;
  NameNumbers names;
  for (size_t at = 0; at < words_.size(); at += RecordWords(words_[at])) {
    const std::string_view key = At(at).key;
    const std::string_view name = NameOf(key);
    entries.push_back({.name = names.NumberOf(name),
                       .first = FirstBytes(key.substr(name.size())),
                       .position = at});
  }
  const std::vector<size_t> positions = names.Positions();
  for (Entry& entry : entries) entry.name = positions[entry.name];
  std::ranges::stable_sort(entries, [this](const Entry& a, const Entry& b) {
    if (a.name != b.name) return a.name < b.name;
    if (a.first != b.first) return a.first < b.first;
    return At(a.position).key < At(b.position).key;
  });
  return entries;
}

Result<void> RecordSet::ForEachInOrder(const TableRecordCallback& callback) const {
  if (!is_in_order_) {
    for (const Entry& entry : SortedEntries()) CAIRN_TRY(callback(At(entry.position)));
    return {};
  }
  for (size_t column = 0; column < kColumnCount; ++column) {
    if (!last_[column]) continue;
    for (size_t at = 0; at <= *last_[column]; at += RecordWords(words_[at])) {
      const TableRecord record = At(at);
      if (record.column() == static_cast<Column>(column)) CAIRN_TRY(callback(record));
    }
  }
  return {};
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
  const size_t most_words = used_words_ + 1 + next_.size();
  if (block_.size() < most_words) block_.resize(std::max(most_words, 2 * block_.size()));
  const size_t at = used_words_++;
  block_[at] = next_[0];
  if (!last_.empty() && last_[0] == next_[0] && next_.size() - 1 <= kMaxSimilarWords) {
    uint64_t mask = kSimilar;
    for (size_t i = 1; i < next_.size(); ++i) {
      const bool differs = next_[i] != last_[i];
      mask |= uint64_t{differs} << (i - 1);
      block_[used_words_] = next_[i];
      used_words_ += differs ? 1 : 0;
    }
    block_[at] = mask;
  } else {
    std::copy(next_.begin() + 1, next_.end(), &block_[used_words_]);
    used_words_ += next_.size() - 1;
  }
  std::swap(last_, next_);
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
