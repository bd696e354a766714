// Encodes and decodes parts, frame by frame.

#include "kv/commit/internal/part_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace cairn::kv::internal {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kFrameTargetBytes = 1 << 20;
constexpr uint64_t kMaxPartBytes = 2ull << 30;
constexpr size_t kFrameAt = 4;
constexpr size_t kAttemptAt = 5;
static_assert(kAttemptAt * sizeof(uint64_t) + kMaxAttemptBytes ==
              kPartHeaderWords * sizeof(uint64_t));

/// Returns the words before the records, without those of the frame.
std::vector<uint64_t> HeaderWords(const PartHeader& header) {
  std::vector<uint64_t> words(kPartHeaderWords);
  std::memcpy(words.data(), header.store_uuid.data(), header.store_uuid.size());
  words[2] = header.step;
  words[3] = header.rank | uint64_t{header.world_size} << 32;
  CAIRN_CHECK(header.attempt.size() < kMaxAttemptBytes);
  std::memcpy(&words[kAttemptAt], header.attempt.data(), header.attempt.size());
  return words;
}

uint64_t NumberWord(uint32_t number, bool is_last) { return number | uint64_t{is_last} << 32; }

/// Checks the record of frame `number`, and calls back with the records in it. `header` are the
/// words of the expected header. Returns whether it is the last frame.
Result<bool> ReadFrame(std::span<const std::byte> bytes, std::span<const uint64_t> header,
                       uint32_t number, const TableRecordCallback& callback) {
  const std::span words(reinterpret_cast<const uint64_t*>(bytes.data()),
                        bytes.size() / sizeof(uint64_t));
  if (words.size() < kPartHeaderWords || words.size_bytes() != bytes.size()) {
    return Fail(ErrorCode::kDataLoss, "a frame of the part has an impossible size");
  }
  if (!std::ranges::equal(words.first(2), header.first(2))) {
    return Fail(ErrorCode::kConflict,
                "the part was written for another store: the store was replaced by another one "
                "while a rank had it open; open it again");
  }
  if (!std::ranges::equal(words.subspan(2, 2), header.subspan(2, 2)) ||
      !std::ranges::equal(words.first(kPartHeaderWords).subspan(kAttemptAt),
                          header.subspan(kAttemptAt))) {
    return Fail(ErrorCode::kDataLoss, "the part belongs to another rank or attempt");
  }
  const bool is_last = words[kFrameAt] == NumberWord(number, true);
  if (!is_last && words[kFrameAt] != NumberWord(number, false)) {
    return Fail(ErrorCode::kDataLoss, "the frames of the part are not in order");
  }
  for (auto rest = words.subspan(kPartHeaderWords); !rest.empty();) {
    const size_t record_words = RecordWords(rest.front());
    if (record_words > rest.size() || KeyBytes(rest.front()) == 0) {
      return Fail(ErrorCode::kDataLoss, "a record has an impossible size");
    }
    const TableRecord record = RecordAt(rest.data());
    CAIRN_TRY(callback(record));
    rest = rest.subspan(record_words);
  }
  return is_last;
}

}  // namespace

PartWriter::PartWriter(std::shared_ptr<Storage> storage, std::string name, const PartHeader& header)
    : storage_(std::move(storage)), name_(std::move(name)), words_(HeaderWords(header)) {}

Result<void> PartWriter::Add(const TableRecord& record) {
  const uint64_t need = record.key.size() + record.value.size();
  if (need >= kPartFrame.max_record_bytes) {
    return Fail(ErrorCode::kResourceExhausted,
                fmt::format("a record of {} bytes is too large", need));
  }
  const bool has_records = words_.size() > kPartHeaderWords;
  if (has_records && words_.size() * sizeof(uint64_t) + need > kFrameTargetBytes) {
    CAIRN_TRY(EndFrame(/*is_last=*/false));
  }
  AppendRecord(words_, record.key, record.value);
  return {};
}

Result<void> PartWriter::EndFrame(bool is_last) {
  words_[kFrameAt] = NumberWord(frame_count_++, is_last);
  CAIRN_TRY_ASSIGN(const auto frame, FrameRecord(kPartFrame, std::as_bytes(std::span(words_))));
  if (object_.size() + frame.size() > kMaxPartBytes) {
    return Fail(ErrorCode::kResourceExhausted, "a rank has too many records for one step");
  }
  object_.insert(object_.end(), frame.begin(), frame.end());
  words_.resize(kPartHeaderWords);
  return {};
}

Result<void> PartWriter::Finish() {
  CAIRN_TRY(EndFrame(/*is_last=*/true));
  Result<void> put = storage_->PutIfAbsentVolatile(name_, object_);
  if (put) return {};
  // If the storage has these bytes, the put was performed, and its response was lost.
  const Result<std::vector<std::byte>> stored = storage_->Read(name_, object_.size());
  if (stored && *stored == object_) return {};
  return put;
}

Result<std::vector<std::byte>> FetchPart(Storage& storage, const std::string& name) {
  return storage.Read(name, kMaxPartBytes);
}

uint64_t ClaimedBytes(std::span<const std::byte> part) {
  uint64_t claimed_bytes = 0;
  while (!part.empty()) {
    const FrameLengths lengths = LengthsOfFrame(part);
    claimed_bytes += lengths.record_bytes;
    part = part.subspan(lengths.frame_bytes);
  }
  return claimed_bytes;
}

Result<void> ReadPart(const std::string& path, std::span<const std::byte> part,
                      const PartHeader& expected, const TableRecordCallback& callback,
                      std::vector<std::byte>* memory) {
  const std::vector<uint64_t> header = HeaderWords(expected);
  std::vector<std::byte> own_memory;
  std::vector<std::byte>& record = memory == nullptr ? own_memory : *memory;
  uint32_t frame_count = 0;
  size_t at = 0;
  const auto read_frame = [&]() -> Result<bool> {
    const auto rest = part.subspan(at);
    const auto frame = rest.first(LengthsOfFrame(rest).frame_bytes);
    CAIRN_TRY(UnframeRecord(kPartFrame, frame, /*any_digest_kind=*/false, record));
    CAIRN_TRY_ASSIGN(const bool is_last, ReadFrame(record, header, frame_count++, callback));
    if (is_last && frame.size() < rest.size()) {
      return Fail(ErrorCode::kDataLoss, "there are bytes after the end of the part");
    }
    at += frame.size();
    return is_last;
  };
  while (true) {
    const Result<bool> is_last = read_frame();
    if (!is_last) return Fail(Error(is_last.error()).WithFile(path).WithOffset(at));
    if (*is_last) return {};
  }
}

}  // namespace cairn::kv::internal
