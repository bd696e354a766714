// Parsing with pugixml, which refuses nothing that is well-formed, so missing elements are checked.

#include "kv/storage/s3/internal/s3_xml.h"

#include <fmt/format.h>

#include <cstring>
#include <pugixml.hpp>
#include <sstream>
#include <utility>

namespace cairn::kv::internal {
namespace {

// Names without a namespace prefix, as servers write them.
pugi::xml_node Root(pugi::xml_document& document, std::string_view text) {
  if (!document.load_buffer(text.data(), text.size())) return {};
  return document.document_element();
}

std::unexpected<Error> NotUnderstood(std::string_view what) {
  return Fail(ErrorCode::kUnavailable, fmt::format("the response of the server is not {}", what));
}

}  // namespace

S3ErrorDocument ParseS3Error(std::string_view text) {
  pugi::xml_document document;
  const pugi::xml_node root = Root(document, text);
  if (std::strcmp(root.name(), "Error") != 0) return {};
  return {.code = root.child_value("Code"),
          .message = root.child_value("Message"),
          .request_id = root.child_value("RequestId"),
          .region = root.child_value("Region")};
}

Result<S3Listing> ParseS3Listing(std::string_view text) {
  pugi::xml_document document;
  const pugi::xml_node root = Root(document, text);
  const bool of_objects = std::strcmp(root.name(), "ListBucketResult") == 0;
  const bool of_uploads = std::strcmp(root.name(), "ListMultipartUploadsResult") == 0;
  if (!of_objects && !of_uploads) return NotUnderstood("a listing");
  S3Listing listing;
  for (const pugi::xml_node object : root.children("Contents")) {
    listing.keys.emplace_back(object.child_value("Key"));
  }
  for (const pugi::xml_node upload : root.children("Upload")) {
    listing.uploads.push_back(
        {.key = upload.child_value("Key"), .upload_id = upload.child_value("UploadId")});
  }
  if (!root.child("IsTruncated").text().as_bool()) return listing;
  if (of_objects) {
    listing.next = {{"continuation-token", root.child_value("NextContinuationToken")}};
  } else {
    listing.next = {{"key-marker", root.child_value("NextKeyMarker")},
                    {"upload-id-marker", root.child_value("NextUploadIdMarker")}};
  }
  // Otherwise the same page would be requested again, or the rest would be missing.
  if (listing.next.begin()->second.empty()) return NotUnderstood("a complete page of a listing");
  return listing;
}

Result<std::string> ParseUploadId(std::string_view text) {
  pugi::xml_document document;
  std::string id = Root(document, text).child_value("UploadId");
  if (id.empty()) return NotUnderstood("that of the beginning of an upload");
  return id;
}

std::string CompleteUploadBody(const std::vector<S3Part>& parts) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  root.append_attribute("xmlns") = "http://s3.amazonaws.com/doc/2006-03-01/";
  for (size_t i = 0; i < parts.size(); ++i) {
    pugi::xml_node part = root.append_child("Part");
    if (!parts[i].crc32.empty()) part.append_child("ChecksumCRC32").text() = parts[i].crc32.c_str();
    part.append_child("ETag").text() = parts[i].etag.c_str();
    part.append_child("PartNumber").text() = static_cast<unsigned>(i + 1);
  }
  std::ostringstream text;
  document.save(text, "", pugi::format_raw);
  return std::move(text).str();
}

}  // namespace cairn::kv::internal
