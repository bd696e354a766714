// Stripes are leftovers if the head with their name is absent or names others.

#include "kv/storage/rados/internal/rados_leftovers.h"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kv/storage/internal/object_names.h"
#include "kv/storage/rados/internal/object_read.h"
#include "kv/storage/rados/internal/object_write.h"
#include "kv/storage/rados/internal/stripe_layout.h"

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMaxObjects = 1 << 26;
constexpr std::chrono::hours kLongestEnumeration{1};
constexpr std::chrono::minutes kLongestRemoval{10};  // from one pool

// The stripes of each upload, by the `unique` of its layout.
using Uploads = std::map<std::string, std::vector<uint64_t>>;

// Returns whether Cairn writes objects with this name in stripes, and the name's epoch is before
// `end_epoch`.
bool IsStripedBefore(uint32_t end_epoch, std::string_view name) {
  if (const auto parsed = ParseObjectName(name)) return parsed->id.epoch < end_epoch;
  return ParseRootName(name) || name.starts_with(kPendingFolder);
}

// Returns whether the upload is so old that nobody can still complete it.
Result<bool> IsOld(RadosSession& session, RadosIoContext pool, const std::string& last_stripe,
                   std::chrono::seconds min_age) {
  time_t written = 0;
  const int result = session.api().stat(pool, last_stripe.c_str(), nullptr, &written);
  if (result == -ENOENT) return false;
  if (result < 0) return Fail(session.MakeError(result, "read the age of a stripe", last_stripe));
  return std::time(nullptr) - written >= min_age.count();
}

Result<void> RemoveUploads(RadosSession& session, RadosIoContext pool, const std::string& name,
                           const Uploads& uploads, std::chrono::seconds min_age) {
  for (const auto& [unique, stripes] : uploads) {
    const std::string last = StripeName(name, unique, *std::ranges::max_element(stripes));
    CAIRN_TRY_ASSIGN(const bool is_old, IsOld(session, pool, last, min_age));
    if (!is_old) continue;
    // After the age: an upload that is old and has no head now never gets one.
    const Result<ObjectHead> head = ReadHead(session, name, {});
    if (!head && head.error().code != ErrorCode::kNotFound) return std::unexpected(head.error());
    if (head && head->layout && head->layout->unique == unique) continue;
    const StripeLayout layout{
        .stripe_bytes = 1, .pool_id = session.api().ioctx_get_id(pool), .unique = unique};
    CAIRN_TRY(RemoveStripes(session, name, layout, stripes));
  }
  return {};
}

Result<void> RemoveFromPool(RadosSession& session, RadosIoContext pool,
                            const std::set<std::string, std::less<>>& heads, uint32_t end_epoch,
                            std::chrono::seconds min_age) {
  std::map<std::string, Uploads> stripes;  // by the name of the object
  const int result = ForEachRadosObject(session, pool, [&](std::string_view object) {
    const auto stripe = ParseStripeName(object);
    if (stripe && IsStripedBefore(end_epoch, stripe->name)) {
      stripes[stripe->name][stripe->unique].push_back(stripe->index);
    }
  });
  if (result < 0) return Fail(session.MakeError(result, "list stripes", ""));
  const auto deadline = std::chrono::steady_clock::now() + kLongestRemoval;
  for (const auto& [name, uploads] : stripes) {
    if (std::chrono::steady_clock::now() > deadline) {
      return Fail(session.MakeError(-ETIMEDOUT, "remove leftover stripes", ""));
    }
    // Objects with such names are never replaced.
    const bool is_complete = uploads.size() == 1 && ParseObjectName(name) && heads.contains(name);
    if (!is_complete) CAIRN_TRY(RemoveUploads(session, pool, name, uploads, min_age));
  }
  return {};
}

}  // namespace

int ForEachRadosObject(RadosSession& session, RadosIoContext pool,
                       const std::function<void(std::string_view)>& visit) {
  const RadosApi& api = session.api();
  RadosObjectList list = nullptr;
  int result = api.nobjects_list_open(pool, &list);
  if (result < 0) return result;
  // librados limits the time of each of its requests, and not their number.
  const auto deadline = std::chrono::steady_clock::now() + kLongestEnumeration;
  const char* object = nullptr;
  for (uint64_t count = 0; result >= 0; ++count) {
    result = api.nobjects_list_next(list, &object, nullptr, nullptr);
    if (result >= 0) visit(object);
    if (count == kMaxObjects) result = -EOVERFLOW;
    if (count % 1024 == 0 && std::chrono::steady_clock::now() > deadline) result = -ETIMEDOUT;
  }
  api.nobjects_list_close(list);
  return result == -ENOENT ? 0 : result;  // ENOENT is the end
}

Result<void> RemoveLeftoverStripes(RadosSession& session, uint32_t end_epoch,
                                   std::chrono::seconds min_age) {
  std::set<std::string, std::less<>> heads;
  const int result = ForEachRadosObject(session, session.heads(), [&](std::string_view object) {
    if (ParseObjectName(object)) heads.emplace(object);
  });
  if (result < 0) return Fail(session.MakeError(result, "list objects", ""));
  CAIRN_TRY(RemoveFromPool(session, session.heads(), heads, end_epoch, min_age));
  if (session.has_data_pool()) {
    CAIRN_TRY(RemoveFromPool(session, session.stripes(), heads, end_epoch, min_age));
  }
  return {};
}

}  // namespace cairn::kv::internal
