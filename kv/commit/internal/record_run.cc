#include "kv/commit/internal/record_run.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "kv/base/digest.h"
#include "kv/base/div.h"
#include "kv/table/internal/table_writer.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kBlockWords = (2 << 20) / sizeof(uint64_t);
constexpr uint64_t kSimilar = uint64_t{1} << 63;
constexpr size_t kMaxSimilarWords = 63;
static_assert(kMaxTableRecordBytes < uint64_t{1} << 31);  // complete entries have no bit 63

size_t WordsOf(uint32_t bytes) { return DivCeil(bytes, sizeof(uint64_t)); }

}  // namespace

void PaddedRecord::Assign(const RecordView& record) {
  column = record.column;
  key_bytes = static_cast<uint32_t>(record.key.size());
  value_bytes = static_cast<uint32_t>(record.value.size());
  const size_t key_words = WordsOf(key_bytes);
  words.resize(key_words + WordsOf(value_bytes));
  if (key_words > 0) {
    words[key_words - 1] = 0;  // the padding
    std::memcpy(words.data(), record.key.data(), key_bytes);
  }
  words.back() = 0;
  std::memcpy(words.data() + key_words, record.value.data(), value_bytes);
}

bool PaddedRecord::HasLengthsOf(const PaddedRecord& other) const {
  return key_bytes == other.key_bytes && value_bytes == other.value_bytes;
}

RecordView PaddedRecord::View() const {
  const auto bytes = std::as_bytes(std::span(words));
  return {.column = column,
          .key = {reinterpret_cast<const char*>(words.data()), key_bytes},
          .value = bytes.subspan(WordsOf(key_bytes) * sizeof(uint64_t), value_bytes)};
}

Result<RecordRunWriter> RecordRunWriter::Create(Storage& storage, const ObjectId& id) {
  CAIRN_TRY_ASSIGN(auto object, storage.Create(ObjectName(ObjectKind::kTable, id)));
  return RecordRunWriter(storage, std::move(object), id);
}

Result<void> RecordRunWriter::Add(const RecordView& record) {
  CAIRN_TRY(CheckRecord(record.key, record.value));
  next_.Assign(record);
  const size_t most_words = used_words_ + 2 + next_.words.size();
  if (block_.size() < most_words) block_.resize(std::max(most_words, kBlockWords));
  if (next_.column == last_.column && next_.HasLengthsOf(last_) &&
      next_.words.size() <= kMaxSimilarWords) {
    AddSimilar(next_);
  } else {
    AddComplete(next_);
  }
  std::swap(last_, next_);
  return used_words_ < kBlockWords ? Result<void>() : PutBlock();
}

void RecordRunWriter::AddComplete(const PaddedRecord& record) {
  block_[used_words_++] = record.key_bytes | uint64_t{record.value_bytes} << 32;
  block_[used_words_++] = static_cast<uint64_t>(record.column);
  std::ranges::copy(record.words, block_.begin() + static_cast<ptrdiff_t>(used_words_));
  used_words_ += record.words.size();
}

void RecordRunWriter::AddSimilar(const PaddedRecord& record) {
  const size_t at = used_words_++;
  uint64_t mask = kSimilar;
  for (size_t i = 0; i < record.words.size(); ++i) {
    const bool differs = record.words[i] != last_.words[i];
    mask |= uint64_t{differs} << i;
    block_[used_words_] = record.words[i];
    used_words_ += differs ? 1 : 0;
  }
  block_[at] = mask;
}

Result<void> RecordRunWriter::PutBlock() {
  const auto block = std::as_bytes(std::span(block_).first(used_words_));
  run_.blocks.push_back({.size_bytes = block.size(), .checksum = Checksum64(block)});
  size_bytes_ += block.size();
  used_words_ = 0;
  return object_->Append(block);
}

Result<RecordRun> RecordRunWriter::Finish() {
  if (used_words_ > 0) CAIRN_TRY(PutBlock());
  CAIRN_TRY(object_->Finish());
  CAIRN_TRY(CheckStored(storage_, ObjectName(ObjectKind::kTable, run_.id), size_bytes_));
  return std::move(run_);
}

Result<RecordRunReader> RecordRunReader::Open(std::shared_ptr<Storage> storage,
                                              const RecordRun& run) {
  uint64_t size_bytes = 0;
  for (const RecordRun::Block& block : run.blocks) size_bytes += block.size_bytes;
  CAIRN_TRY_ASSIGN(
      ObjectReader object,
      ObjectReader::Open(std::move(storage), ObjectName(ObjectKind::kTable, run.id), size_bytes));
  RecordRunReader reader(std::move(object), run.blocks);
  CAIRN_TRY(reader.Next());
  return reader;
}

Result<void> RecordRunReader::Next() {
  is_valid_ = at_ < block_.size() || next_block_ < blocks_.size();
  if (!is_valid_) return {};
  if (at_ == block_.size()) CAIRN_TRY(ReadBlock());
  const uint64_t first = block_[at_++];
  if ((first & kSimilar) != 0) {
    for (uint64_t mask = first & ~kSimilar; mask != 0; mask &= mask - 1) {
      current_.words[static_cast<size_t>(std::countr_zero(mask))] = block_[at_++];
    }
    return {};
  }
  current_.key_bytes = static_cast<uint32_t>(first);
  current_.value_bytes = static_cast<uint32_t>(first >> 32);
  current_.column = static_cast<Column>(block_[at_++]);
  const auto words =
      std::span(block_).subspan(at_, WordsOf(current_.key_bytes) + WordsOf(current_.value_bytes));
  current_.words.assign(words.begin(), words.end());
  at_ += words.size();
  view_ = current_.View();
  return {};
}

/// The checksum has been in memory since the block was written, so its entries are as they were.
Result<void> RecordRunReader::ReadBlock() {
  const RecordRun::Block& block = blocks_[next_block_++];
  block_.resize(block.size_bytes / sizeof(uint64_t));
  at_ = 0;
  const auto bytes = std::as_writable_bytes(std::span(block_));
  CAIRN_TRY(object_.ReadAt(offset_bytes_, bytes));
  if (Checksum64(bytes) != block.checksum) {
    return Fail(Error{.code = ErrorCode::kDataLoss,
                      .message = "temporary records of a step are not those that were written",
                      .file = object_.path(),
                      .offset_bytes = offset_bytes_});
  }
  offset_bytes_ += block.size_bytes;
  return {};
}

}  // namespace cairn::kv::internal
