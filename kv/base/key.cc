// Order-preserving key encoding.

#include "kv/base/key.h"

#include <cstring>

namespace cairn::kv {

std::string TableKey(Column column, std::string_view key) {
  std::string full;
  full.reserve(1 + key.size());
  full.push_back(static_cast<char>(column));
  full.append(key);
  return full;
}

void AppendBigEndian(std::string& out, uint64_t value) {
  const uint64_t swapped = __builtin_bswap64(value);
  out.append(reinterpret_cast<const char*>(&swapped), sizeof(swapped));
}

uint64_t ReadBigEndian(const char* bytes) {
  uint64_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return __builtin_bswap64(value);
}

std::string NumberKey(uint64_t value) {
  std::string key;
  AppendBigEndian(key, value);
  return key;
}

std::string ChunkKey(std::string_view fqn, std::span<const uint64_t> offsets_elements) {
  std::string key;
  key.reserve(fqn.size() + 1 + 8 * offsets_elements.size());
  key.append(fqn);
  key.push_back('\0');
  for (const uint64_t offset : offsets_elements) AppendBigEndian(key, offset);
  return key;
}

Result<ParsedKey> ParseKey(std::string_view key) {
  const size_t end = key.find('\0');
  if (end == std::string_view::npos || (key.size() - end - 1) % 8 != 0) {
    return Fail(ErrorCode::kDataLoss,
                "malformed index key: the name does not end, or an offset is truncated");
  }
  ParsedKey parsed{.fqn = key.substr(0, end), .offsets_elements = {}};
  for (size_t at = end + 1; at < key.size(); at += 8) {
    parsed.offsets_elements.push_back(ReadBigEndian(key.data() + at));
  }
  return parsed;
}

}  // namespace cairn::kv
