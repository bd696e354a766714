// Documents of S3 servers and of services that supply credentials, and the configuration of AWS.

#include <algorithm>
#include <pugixml.hpp>

#include "kv/storage/s3/internal/credentials.h"
#include "kv/storage/s3/internal/s3_responses.h"
#include "kv/storage/s3/internal/s3_settings.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test

constexpr char kEndpoint[] = "https://s3.example.com";

void FuzzListing(std::string_view text) {
  const auto listing = ParseS3Listing(text);
  if (!listing) return UseError(listing.error());
  // A caller that continues must be able to.
  CAIRN_FUZZ_CHECK(listing->next.empty() || !listing->next.begin()->second.empty());
  CAIRN_FUZZ_CHECK(listing->entries.size() <= text.size());
}

/// Encodes the lines of the input as the parts of an upload, and parses them again.
void FuzzCompletion(Input input) {
  std::vector<S3Part> parts;
  while (!input.rest().empty() && parts.size() < 100) {
    S3Part part{.etag = std::string(input.Line())};
    part.crc32 = input.Line();
    // XML cannot contain control characters. ETags are from headers, which have none.
    const auto is_control = [](char c) { return static_cast<uint8_t>(c) < 0x20; };
    std::erase_if(part.etag, is_control);
    std::erase_if(part.crc32, is_control);
    parts.push_back(std::move(part));
  }
  const std::string body = CompleteUploadBody(parts);
  pugi::xml_document document;
  CAIRN_FUZZ_CHECK(
      document.load_buffer(body.data(), body.size(), pugi::parse_default | pugi::parse_ws_pcdata));
  size_t count = 0;
  for (const pugi::xml_node part : document.document_element().children("Part")) {
    CAIRN_FUZZ_CHECK(count < parts.size());
    CAIRN_FUZZ_CHECK(part.child_value("ETag") == parts[count].etag);
    CAIRN_FUZZ_CHECK(part.child_value("ChecksumCRC32") == parts[count].crc32);
    CAIRN_FUZZ_CHECK(part.child("PartNumber").text().as_uint() == ++count);
  }
  CAIRN_FUZZ_CHECK(count == parts.size());
}

void FuzzCredentials(std::string_view text) {
  const auto credentials = ParseCredentialsJson(text, "the service");
  if (!credentials) {
    UseError(credentials.error());
    // Errors contain nothing of the document, which may be a secret.
    CAIRN_FUZZ_CHECK(credentials.error().message.find("SECRETVALUE") == std::string::npos);
    return;
  }
  CAIRN_FUZZ_CHECK(!credentials->access_key_id.empty());
  CAIRN_FUZZ_CHECK(!credentials->secret_access_key.empty());
}

void FuzzTime(std::string_view text) {
  const auto time = ParseTime(std::string(text));
  if (!time) return;
  // Years from 1970 on are those that services supply; the sign must not be lost.
  const bool is_late = text.size() >= 4 && text[0] == '2' && text[1] == '0' && text[2] >= '0' &&
                       text[2] <= '9' && text[3] >= '0' && text[3] <= '9';
  if (is_late) CAIRN_FUZZ_CHECK(*time > std::chrono::system_clock::time_point());
}

/// Lines "name: value" up to an empty line, then the body.
void FuzzJudgement(Input input) {
  HttpResponse response{.failure = static_cast<CURLcode>(input.Byte() % CURL_LAST),
                        .error = "an error",
                        .status = input.Number<uint16_t>() % 600};
  const uint64_t offset_bytes = input.Number<uint16_t>();
  const uint64_t length_bytes = 1 + uint64_t{input.Number<uint16_t>()};
  response.target_bytes = input.Number<uint16_t>();
  for (auto line = input.Line(); !line.empty(); line = input.Line()) {
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos) continue;
    response.headers.emplace_back(line.substr(0, colon), line.substr(colon + 2));
  }
  response.body = input.rest_text();
  const S3Outcome outcome = JudgeResponse(response, "read an object", kEndpoint, "us-east-1");
  CAIRN_FUZZ_CHECK(outcome.retry_after.count() >= 0);
  if (outcome.verdict != S3Verdict::kSuccess) {
    UseError(outcome.error);
    return;
  }
  CAIRN_FUZZ_CHECK(response.status >= 200 && response.status < 300);
  const S3Outcome of_range =
      JudgeRange(response, offset_bytes, length_bytes, "read an object", kEndpoint);
  if (of_range.verdict != S3Verdict::kSuccess) return UseError(of_range.error);
  CAIRN_FUZZ_CHECK(response.target_bytes == length_bytes);
}

}  // namespace

void Fuzz(Input input) {
  const std::string_view text = input.rest_text().substr(std::min<size_t>(1, input.rest().size()));
  const MemoryLimit limit(input.rest(), 512);
  switch (TakeSelector(input, 8)) {
    case 0:
      return FuzzListing(text);
    case 1:
      CAIRN_FUZZ_CHECK(ParseS3Error(text).code.size() <= text.size());
      return;
    case 2:
      if (const auto id = ParseUploadId(text); !id) UseError(id.error());
      return;
    case 3:
      return FuzzCompletion(input);
    case 4:
      return FuzzCredentials(text);
    case 5:
      return FuzzTime(text);
    case 6:
      ParseAwsSections(text);
      return;
    default:
      return FuzzJudgement(input);
  }
}

}  // namespace cairn::fuzz
