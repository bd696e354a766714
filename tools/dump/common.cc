// What the verbs of kv-dump share: opening a store, and steps and values as JSON.

#include <fmt/format.h>

#include <array>

#include "core/checkpoint_store.h"
#include "tools/common/text.h"
#include "tools/dump/element.h"
#include "tools/dump/verbs.h"

namespace cairn::tools::internal {
namespace {

std::string Hex(std::span<const std::byte> bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) fmt::format_to(std::back_inserter(out), "{:02x}", byte);
  return out;
}

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};

}  // namespace

Result<OpenedStore> OpenSilently(const std::string& address) {
  OpenedStore opened;
  CAIRN_TRY_ASSIGN(opened.address, ParseAddress(address));
  kv::StoreOptions options;
  options.tolerate_lost_steps = true;
  CAIRN_TRY_ASSIGN(opened.store,
                   core::CheckpointStore::Open(opened.address.store, kv::OpenMode::kRead, options));
  return opened;
}

Result<OpenedStore> OpenToLook(const std::string& address) {
  CAIRN_TRY_ASSIGN(OpenedStore opened, OpenSilently(address));
  for (const Error& note : opened.store->kv().recovery_notes()) Warn("kv-dump", note.ToString());
  return opened;
}

Result<OpenedStore> OpenWholeStore(const std::string& address, std::string_view verb) {
  CAIRN_TRY_ASSIGN(OpenedStore opened, OpenToLook(address));
  if (opened.address.step) {
    return Fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is about a whole store; leave out the @{}", verb, *opened.address.step));
  }
  return opened;
}

Result<kv::StepInfo> FindStep(const OpenedStore& opened) {
  CAIRN_TRY_ASSIGN(const auto snapshot, opened.store->kv().Latest());
  return snapshot->FindStep(opened.address.step);
}

Json StepJson(const kv::StepInfo& step) {
  Json json = {{"step", step.step},
               {"created", IsoTime(step.created_unix_ns)},
               {"created_unix_ns", step.created_unix_ns},
               {"world_size", step.world_size},
               {"attempt", JsonText(step.attempt)},
               {"generation", step.generation}};
  json["base_step"] = step.base_step ? Json(*step.base_step) : Json(nullptr);
  json["keys"] = step.tensor_count + step.value_count;
  json["tensors"] = step.tensor_count;
  json["values"] = step.value_count;
  json["chunks"] = step.chunk_count;
  json["chunks_reused"] = step.reused_chunk_count;
  json["logical_bytes"] = step.logical_bytes;
  json["written_bytes"] = step.written_bytes;
  return json;
}

std::string ValueKindName(const core::Value& value) {
  static constexpr std::array kNames = {"None",    "bool", "int",   "int",   "float",
                                        "complex", "str",  "bytes", "pickle"};
  static_assert(kNames.size() == std::variant_size_v<core::Value>);
  return kNames[value.index()];
}

Json ValueJson(const core::Value& value) {
  return std::visit(
      Overloaded{[](std::monostate) { return Json(nullptr); }, [](bool v) { return Json(v); },
                 [](int64_t v) { return Json(v); },
                 [](const core::BigInt& v) {
                   return Json{{"twos_complement_le", Hex(v.twos_complement)}};
                 },
                 [](double v) { return FloatJson(v); },
                 [](const std::complex<double>& v) {
                   return Json{{"real", FloatJson(v.real())}, {"imag", FloatJson(v.imag())}};
                 },
                 [](const std::string& v) { return Json(JsonText(v)); },
                 [](const core::Bytes& v) {
                   return Json{{"hex", Hex(v.data)}};
                 },
                 // Never the content: whoever reads this document must not be led to unpickle it.
                 [](const core::Pickle& v) {
                   return Json{{"pickle_bytes", v.data.size()}};
                 }},
      value);
}

}  // namespace cairn::tools::internal
