// Roots, pages of steps, and the frame around both.

#include "kv/root/internal/framed_record.h"
#include "kv/root/internal/root_record.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr FrameKind kRootFrame{.magic = "CNRT", .version = 1, .name = "root"};
constexpr FrameKind kPageFrame{.magic = "CNPG", .version = 1, .name = "page of steps"};
// A name of 512 bytes and a note of 4096 may be used by several tables of a few bytes each.
constexpr uint64_t kMemoryPerByte = 2048;

/// Calls `decode` and checks its memory: it may need some for each byte of the record.
template <typename Decode>
auto DecodeWithinLimit(const Decode& decode, std::span<const std::byte> object,
                       const FrameKind& kind) {
  const auto record = UnframeRecord(kind, object);
  const uint64_t record_bytes = record ? record->size() : 0;
  const MemoryLimit limit((1 << 20) + kMemoryPerByte * (object.size() + record_bytes));
  return decode(object);
}

/// What several tables of a record share is encoded for each of them, and may exceed the limit of a
/// record.
template <typename Decode, typename Encode>
void CheckObject(const Decode& decode, const Encode& encode, std::span<const std::byte> object,
                 const FrameKind& kind) {
  const auto decoded = DecodeWithinLimit(decode, object, kind);
  if (!decoded) return UseError(decoded.error());
  const auto once = encode(*decoded);
  if (!once) return UseError(once.error());
  const auto again = decode(*once);
  CAIRN_FUZZ_CHECK(again.has_value());
  CAIRN_FUZZ_CHECK(Is(encode(*again), *once));
}

}  // namespace

void Fuzz(Input input) {
  const uint8_t selector = TakeSelector(input, 6);
  std::vector<std::byte> object = input.CopyRest();
  if (selector == 1 || selector == 4) RepairChecksum(object);
  if (selector == 2 || selector == 5) {
    object = FrameRecord(selector == 2 ? kRootFrame : kPageFrame, input.rest()).value();
  }
  if (selector < 3) return CheckObject(&DecodeRoot, &EncodeRoot, object, kRootFrame);
  CheckObject(&DecodePage, &EncodePage, object, kPageFrame);
}

}  // namespace cairn::fuzz
