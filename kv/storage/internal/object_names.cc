#include "kv/storage/internal/object_names.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <charconv>

#include "kv/base/error.h"

namespace cairn::kv::internal {

namespace {

// Independent of the locale.
bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

bool IsElement(std::string_view element) {
  return !element.empty() && element.front() != '.' &&
         std::ranges::all_of(element, IsNameCharacter);
}

}  // namespace

bool IsObjectName(std::string_view name) {
  if (name == ".metadata") return true;  // docs/format/store.md
  for (size_t slash = name.find('/'); slash != std::string_view::npos; slash = name.find('/')) {
    if (!IsElement(name.substr(0, slash))) return false;
    name.remove_prefix(slash + 1);
  }
  return IsElement(name);
}

bool IsObjectPrefix(std::string_view prefix) {
  return prefix.empty() ||
         (prefix.back() == '/' && IsObjectName(prefix.substr(0, prefix.size() - 1)));
}

std::string ObjectPath(std::string_view address, std::string_view name) {
  return fmt::format("{}/{}", address, name);
}

namespace {

constexpr size_t kEpochDigits = 8;
constexpr size_t kIdDigits = 16;  // and 8 of the tail
constexpr size_t kTailDigits = 8;
constexpr size_t kRootDigits = 16;
constexpr std::string_view kRootSuffix = ".root";

struct KindName {
  ObjectKind kind;
  std::string_view folder;
  std::string_view suffix;
};
constexpr KindName kKindNames[] = {{ObjectKind::kSegment, "segments/", ".seg"},
                                   {ObjectKind::kTable, "tables/", ".sst"},
                                   {ObjectKind::kPage, "pages/", ".steps"}};

const KindName& NameOf(ObjectKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

/// Returns the part of `name` between `folder` and `suffix`; nothing if it has other ones.
std::optional<std::string_view> StemOf(std::string_view name, std::string_view folder,
                                       std::string_view suffix) {
  if (name.size() < folder.size() + suffix.size() || !name.starts_with(folder) ||
      !name.ends_with(suffix)) {
    return std::nullopt;
  }
  name.remove_prefix(folder.size());
  name.remove_suffix(suffix.size());
  return name;
}

/// Parses digits of a fixed number, of which upper-case ones are refused.
template <typename Integer>
std::optional<Integer> ParseHex(std::string_view digits, size_t digit_count) {
  if (!IsHexDigits(digits, digit_count)) return std::nullopt;
  Integer value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return value;
}

}  // namespace

bool IsHexDigits(std::string_view text, size_t digit_count) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == digit_count && std::ranges::all_of(text, is_digit);
}

bool IsDecimal(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

std::optional<uint64_t> ParseDecimal(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

uint64_t NewUniqueNumber() {
  uint64_t number = 0;
  // Cannot fail for so few bytes. The kernel's generator, unlike one in this process, does not
  // return the same numbers to a parent and its forked child.
  CAIRN_CHECK(::getrandom(&number, sizeof(number), 0) == sizeof(number));
  return number;
}

ObjectId NewObjectId(uint32_t epoch) {
  return {
      .epoch = epoch, .id = NewUniqueNumber(), .id_tail = static_cast<uint32_t>(NewUniqueNumber())};
}

std::string_view ObjectFolder(ObjectKind kind) { return NameOf(kind).folder; }

std::string ObjectName(ObjectKind kind, const ObjectId& id) {
  return fmt::format("{}{:08x}-{:016x}{:08x}{}", NameOf(kind).folder, id.epoch, id.id, id.id_tail,
                     NameOf(kind).suffix);
}

std::optional<ParsedObjectName> ParseObjectName(std::string_view name) {
  for (const KindName& kind : kKindNames) {
    const auto stem = StemOf(name, kind.folder, kind.suffix);
    constexpr size_t kTailBegin = kEpochDigits + 1 + kIdDigits;
    if (!stem || stem->size() != kTailBegin + kTailDigits || (*stem)[kEpochDigits] != '-') continue;
    const auto epoch = ParseHex<uint32_t>(stem->substr(0, kEpochDigits), kEpochDigits);
    const auto id = ParseHex<uint64_t>(stem->substr(kEpochDigits + 1, kIdDigits), kIdDigits);
    const auto tail = ParseHex<uint32_t>(stem->substr(kTailBegin), kTailDigits);
    if (epoch && id && tail) {
      return ParsedObjectName{kind.kind, {.epoch = *epoch, .id = *id, .id_tail = *tail}};
    }
  }
  return std::nullopt;
}

bool IsSessionName(std::string_view name) { return IsHexDigits(name, kSessionDigits); }

bool IsAttemptName(std::string_view name) {
  if (!IsSessionName(name.substr(0, kSessionDigits))) return false;
  name.remove_prefix(kSessionDigits);
  const size_t counter = name.rfind('-');
  return name.starts_with('-') && counter > 0 && IsDecimal(name.substr(1, counter - 1)) &&
         IsDecimal(name.substr(counter + 1));
}

std::string RootName(uint64_t number) {
  return fmt::format("{}{:016x}{}", kRootFolder, ~number, kRootSuffix);
}

std::optional<uint64_t> ParseRootName(std::string_view name) {
  const auto stem = StemOf(name, kRootFolder, kRootSuffix);
  if (!stem) return std::nullopt;
  const auto inverted = ParseHex<uint64_t>(*stem, kRootDigits);
  if (!inverted) return std::nullopt;
  return ~*inverted;
}

}  // namespace cairn::kv::internal
