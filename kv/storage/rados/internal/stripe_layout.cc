// Texts of layouts and names of stripes.

#include "kv/storage/rados/internal/stripe_layout.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "kv/storage/internal/object_names.h"

namespace cairn::kv::internal {
namespace {

constexpr size_t kUniqueDigits = 16;

template <typename Integer>
bool ParseInteger(std::string_view text, Integer* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool IsUnique(std::string_view text) { return IsHexDigits(text, kUniqueDigits); }

}  // namespace

std::string EncodeLayout(const StripeLayout& layout) {
  CAIRN_CHECK(layout.stripe_bytes > 0 && layout.stripe_count() <= kMaxStripes &&
              IsUnique(layout.unique));
  return fmt::format("1 {} {} {} {}", layout.size_bytes, layout.stripe_bytes, layout.pool_id,
                     layout.unique);
}

Result<StripeLayout> DecodeLayout(std::string_view text) {
  std::array<std::string_view, 5> fields;
  std::string_view rest = text;
  for (std::string_view& field : fields) {
    const size_t space = rest.find(' ');
    field = rest.substr(0, space);
    rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
  }
  Result<StripeLayout> layout;
  layout->unique = fields[4];
  if (fields[0] == "1" && rest.empty() && ParseInteger(fields[1], &layout->size_bytes) &&
      ParseInteger(fields[2], &layout->stripe_bytes) && layout->stripe_bytes > 0 &&
      layout->stripe_count() <= kMaxStripes && ParseInteger(fields[3], &layout->pool_id) &&
      IsUnique(layout->unique)) {
    return layout;
  }
  const uint64_t version = ParseDecimal(fields[0]).value_or(0);
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
  ParsedStripeName parsed;
  parsed.name = object.substr(0, first);
  parsed.unique = object.substr(first + 1, second - first - 1);
  if (!IsObjectName(parsed.name) || !IsUnique(parsed.unique) ||
      !ParseInteger(object.substr(second + 1), &parsed.index)) {
    return std::nullopt;
  }
  return parsed;
}

}  // namespace cairn::kv::internal
