#include "kv/storage/internal/object_names.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>

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

struct KindName {
  ObjectKind kind;
  std::string_view folder;
  std::string_view suffix;
};
constexpr KindName kKindNames[] = {{ObjectKind::kSegment, "segments/", ".seg"},
                                   {ObjectKind::kTable, "tables/", ".sst"},
                                   {ObjectKind::kPage, "pages/", ".steps"}};

const KindName& NameOf(ObjectKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

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

// Names are parsed leniently, and accepted if they are those that the numbers have.

std::optional<ParsedObjectName> ParseObjectName(std::string_view name) {
  const std::string copy(name);
  for (const KindName& kind : kKindNames) {
    ObjectId id;
    if (name.starts_with(kind.folder) &&
        std::sscanf(copy.c_str() + kind.folder.size(), "%8" SCNx32 "-%16" SCNx64 "%8" SCNx32,
                    &id.epoch, &id.id, &id.id_tail) == 3 &&
        ObjectName(kind.kind, id) == name) {
      return ParsedObjectName{kind.kind, id};
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
  return fmt::format("{}{:016x}.root", kRootFolder, ~number);
}

std::optional<uint64_t> ParseRootName(std::string_view name) {
  const std::string copy(name);
  uint64_t inverted = 0;
  if (std::sscanf(copy.c_str(), "roots/%16" SCNx64, &inverted) != 1) return std::nullopt;
  return RootName(~inverted) == name ? std::optional(~inverted) : std::nullopt;
}

}  // namespace cairn::kv::internal
