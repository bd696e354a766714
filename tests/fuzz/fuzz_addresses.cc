// What users write: addresses of stores, and which steps remain.

#include <algorithm>
#include <string>

#include "kv/base/annotations.h"
#include "kv/base/retention.h"
#include "kv/storage/open/open_storage.h"
#include "kv/storage/rados/internal/rados_session.h"
#include "kv/storage/s3/internal/s3_settings.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

std::string NoVariables(const char*) { return {}; }

/// The first line is the address; the others are settings of a profile, "name=value".
void FuzzS3(Input input) {
  const auto address = ParseS3Address(input.Line());
  if (!address) return UseError(address.error());
  CAIRN_FUZZ_CHECK(!address->bucket.empty());
  CAIRN_FUZZ_CHECK(!address->prefix.starts_with('/') && !address->prefix.ends_with('/'));
  AwsProfile profile{.name = "default"};
  while (!input.rest().empty()) {
    const std::string_view line = input.Line();
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    profile.settings[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  const auto settings = ResolveS3Settings(*address, profile, &NoVariables);
  if (!settings) return UseError(settings.error());
  CAIRN_FUZZ_CHECK(settings->base_url.starts_with("http"));
  CAIRN_FUZZ_CHECK(settings->base_url.find_first_of(" \r\n") == std::string::npos);
  // The address in messages is that of the same place.
  const auto again = ParseS3Address(settings->address);
  CAIRN_FUZZ_CHECK(again && again->bucket == address->bucket && again->prefix == address->prefix);
}

void FuzzRados(std::string_view text) {
  const std::string address = "rados:" + std::string(text);
  const auto settings = ParseRadosAddress(address);
  if (!settings) return UseError(settings.error());
  const auto again = ParseRadosAddress(settings->address);
  CAIRN_FUZZ_CHECK(again && again->pool == settings->pool &&
                   again->name_space == settings->name_space);
}

/// The lines are policies and tags.
void FuzzRetention(Input input) {
  kv::RetentionPolicy policy{.keep_last = input.Byte() % 4u, .keep_every = input.Byte() % 4u};
  std::vector<kv::StepInfo> steps(8);
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i].step = i;
    steps[i].metrics = {{.name = "loss", .value = static_cast<double>(i % 3)}};
  }
  while (!input.rest().empty()) {
    const std::string_view line = input.Line();
    kv::IsTagName(line);
    const auto best = kv::ParseKeepBest(line);
    if (!best) {
      UseError(best.error());
      continue;
    }
    CAIRN_FUZZ_CHECK(best->count > 0);
    CAIRN_FUZZ_CHECK(Is(kv::ParseKeepBest(kv::FormatKeepBest(*best)), *best));
    policy.keep_best.push_back(*best);
  }
  if (const auto checked = kv::CheckRetention(policy); !checked) UseError(checked.error());
  const auto doomed = kv::StepsToDelete(policy, steps, {{"best", 2}}, 7, true);
  CAIRN_FUZZ_CHECK(std::ranges::is_sorted(doomed));
  CAIRN_FUZZ_CHECK(std::ranges::none_of(doomed, [](uint64_t s) { return s == 2 || s >= 7; }));
}

/// Only kinds of storages that need no configuration of the machine.
void FuzzOpen(std::string_view text) {
  if (text.find('\0') != std::string_view::npos) return;
  const std::string address(text);
  if (address.starts_with("s3:") || address.starts_with("rados:")) return;
  if (address.starts_with("memory:")) return;  // each name is kept until the process ends
  const auto storage = kv::OpenStorage(address);
  if (!storage) UseError(storage.error());
}

}  // namespace

void Fuzz(Input input) {
  const MemoryLimit limit(input.rest(), 256);
  switch (TakeSelector(input, 5)) {
    case 0:
      return FuzzS3(input);
    case 1:
      return FuzzRados(input.rest_text());
    case 2:
      return FuzzRetention(input);
    case 3:
      return FuzzOpen(input.rest_text());
    default: {
      const std::string encoded = EncodeUri(input.rest_text(), /*keep_slash=*/true);
      CAIRN_FUZZ_CHECK(encoded.size() <= 3 * input.rest().size());
      CAIRN_FUZZ_CHECK(encoded.find_first_of(" ?&#\r\n") == std::string::npos);
    }
  }
}

}  // namespace cairn::fuzz
