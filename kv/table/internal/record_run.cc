#include "kv/table/internal/record_run.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "kv/base/digest.h"
#include "kv/table/internal/table_writer.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kBlockWords = (2 << 20) / sizeof(uint64_t);
constexpr uint64_t kSimilar = uint64_t{1} << 63;
constexpr size_t kMaxSimilarWords = 63;
static_assert(kMaxTableRecordBytes < uint64_t{1} << 31);  // headers have no bit 63

}  // namespace

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
