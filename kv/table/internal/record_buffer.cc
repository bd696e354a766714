#include "kv/table/internal/record_buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn::kv::internal {
namespace {

constexpr size_t kBlockBytes = 1 << 20;

}  // namespace

void RecordBuffer::Add(std::string_view key, std::span<const std::byte> value) {
  const Header header{.key_bytes = static_cast<uint32_t>(key.size()),
                      .value_bytes = static_cast<uint32_t>(value.size())};
  const size_t record_bytes = sizeof(header) + key.size() + value.size();
  if (blocks_.empty() || blocks_.back().capacity() - blocks_.back().size() < record_bytes) {
    if (unused_.empty()) unused_.emplace_back();
    blocks_.push_back(std::move(unused_.back()));
    unused_.pop_back();
    blocks_.back().reserve(std::max(kBlockBytes, record_bytes));
  }
  std::string& block = blocks_.back();
  block.append(reinterpret_cast<const char*>(&header), sizeof(header));
  block.append(key);
  block.append(reinterpret_cast<const char*>(value.data()), value.size());
  size_bytes_ += record_bytes;
  ++record_count_;
}

void RecordBuffer::Clear() { *this = RecordBuffer(); }

void RecordBuffer::ClearRecords() {
  for (std::string& block : blocks_) {
    block.clear();
    unused_.push_back(std::move(block));
  }
  blocks_.clear();
  record_count_ = 0;
  size_bytes_ = 0;
}

RecordBuffer::Cursor::Cursor(const RecordBuffer& buffer) : buffer_(buffer) {
  if (Valid()) Load();
}

void RecordBuffer::Cursor::Next() {
  if (offset_bytes_ == buffer_.blocks_[block_].size()) {
    ++block_;
    offset_bytes_ = 0;
  }
  if (Valid()) Load();
}

void RecordBuffer::Cursor::Load() {
  const std::string_view rest = std::string_view(buffer_.blocks_[block_]).substr(offset_bytes_);
  Header header;
  std::memcpy(&header, rest.data(), sizeof(header));
  key_ = rest.substr(sizeof(header), header.key_bytes);
  const auto value = rest.substr(sizeof(header) + header.key_bytes, header.value_bytes);
  value_ = std::as_bytes(std::span(value.data(), value.size()));
  offset_bytes_ += sizeof(header) + header.key_bytes + header.value_bytes;
}

}  // namespace cairn::kv::internal
