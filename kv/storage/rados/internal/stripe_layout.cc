// Texts of layouts and names of stripes.

#include "kv/storage/rados/internal/stripe_layout.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>

#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kUniqueDigits = 16;

bool IsUnique(std::string_view text) { return IsHexDigits(text, kUniqueDigits); }

bool IsValid(const StripeLayout& layout) {
  return layout.stripe_bytes > 0 && layout.stripe_count() <= kMaxStripes && IsUnique(layout.unique);
}

}  // namespace

std::string EncodeLayout(const StripeLayout& layout) {
  CAIRN_CHECK(IsValid(layout));
  return fmt::format("1 {} {} {} {}", layout.size_bytes, layout.stripe_bytes, layout.pool_id,
                     layout.unique);
}

Result<StripeLayout> DecodeLayout(std::string_view text) {
  const std::string copy(text);
  StripeLayout layout;
  layout.unique.resize(kUniqueDigits);
  const int found =
      std::sscanf(copy.c_str(), "1 %" SCNu64 " %" SCNu64 " %" SCNd64 " %16c", &layout.size_bytes,
                  &layout.stripe_bytes, &layout.pool_id, layout.unique.data());
  // The encoding is the same text: scanf ignores further space, signs and what is after the end.
  if (found == 4 && IsValid(layout) && EncodeLayout(layout) == text) return layout;
  const uint64_t version = ParseDecimal(text.substr(0, text.find(' '))).value_or(0);
  if (version > 1) {
    return Fail(
        ErrorCode::kUnimplemented,
        fmt::format("the layout of the object has version {}, and this build supports 1", version));
  }
  return Fail(ErrorCode::kDataLoss,
              fmt::format("the attribute {} of the object is damaged", kLayoutXattr));
}

std::string NewUnique() { return fmt::format("{:016x}", NewUniqueNumber()); }

std::string StripeName(std::string_view name, std::string_view unique, uint64_t index) {
  return fmt::format("{}:{}:{}", name, unique, index);
}

std::optional<ParsedStripeName> ParseStripeName(std::string_view object) {
  const size_t first = object.find(':');
  if (first == std::string_view::npos) return std::nullopt;
  const size_t second = object.find(':', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const std::string_view name = object.substr(0, first);
  const std::string_view unique = object.substr(first + 1, second - first - 1);
  const std::optional<uint64_t> index = ParseDecimal(object.substr(second + 1));
  if (!IsObjectName(name) || !IsUnique(unique) || !index) return std::nullopt;
  return ParsedStripeName{
      .name = std::string(name), .unique = std::string(unique), .index = *index};
}

}  // namespace cairn::kv::internal
