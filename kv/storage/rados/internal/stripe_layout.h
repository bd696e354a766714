#pragma once
/// How an object is stored as RADOS objects.
///
/// The head, which has the same RADOS name as the object, exists exactly if the object does. It is
/// in the pool of the address, and either
///   - contains the bytes of the object, or
///   - is empty, has the extended attribute kLayoutXattr, and the bytes are in stripes.
/// Stripe i has the RADOS name "<name>:<unique>:<i>" and the bytes from i * stripe_bytes on. All
/// stripes exist before the head. `unique` is random, so that stripes are immutable: two writes of
/// one object have different stripes. ':' is not a character of names.
///
/// The attribute is the text "1 <size_bytes> <stripe_bytes> <pool_id> <unique>"; 1 is the version,
/// and `unique` has 16 hexadecimal digits.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kv/base/error.h"

namespace cairn::kv::internal {

inline constexpr const char* kLayoutXattr = "cairn.layout";

/// A layout that names more is damaged: to read or to remove such an object would never end.
inline constexpr uint64_t kMaxStripes = 1 << 21;

struct StripeLayout {
  uint64_t size_bytes = 0;
  uint64_t stripe_bytes = 0;
  int64_t pool_id = 0;
  std::string unique;

  uint64_t stripe_count() const {
    return size_bytes / stripe_bytes + (size_bytes % stripe_bytes == 0 ? 0 : 1);
  }
  friend bool operator==(const StripeLayout&, const StripeLayout&) = default;
};

std::string EncodeLayout(const StripeLayout& layout);
/// kUnimplemented: the version is newer. kDataLoss: it is not a layout.
Result<StripeLayout> DecodeLayout(std::string_view text);

/// Returns 16 digits that no other call returns, in any process.
std::string NewUnique();
std::string StripeName(std::string_view name, std::string_view unique, uint64_t index);

struct ParsedStripeName {
  std::string name;
  std::string unique;
  uint64_t index = 0;
};
/// Returns nothing if StripeName returns `object` for no stripe.
std::optional<ParsedStripeName> ParseStripeName(std::string_view object);

}  // namespace cairn::kv::internal
