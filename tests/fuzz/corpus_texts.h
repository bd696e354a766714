#pragma once
/// Inputs of the fuzzers that are texts: documents of servers, addresses, patterns.

#include <cstdint>
#include <string_view>

namespace cairn::fuzz {

struct TextInput {
  const char* fuzzer;
  const char* name;
  uint8_t selector;
  std::string_view text;
};

using namespace std::string_view_literals;  // NOLINT: some texts contain NUL

inline constexpr TextInput kTextInputs[] = {
    {"s3", "listing", 0,
     R"(<?xml version="1.0" encoding="UTF-8"?>)"
     R"(<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>)"
     "<Prefix>p/</Prefix><KeyCount>2</KeyCount><IsTruncated>true</IsTruncated><Contents>"
     "<Key>p/CAIRN</Key><Size>85</Size></Contents><Contents><Key>p/a&amp;b</Key></Contents>"
     "<NextContinuationToken>t=</NextContinuationToken></ListBucketResult>"},
    {"s3", "listing_empty", 0,
     "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"},
    {"s3", "listing_uploads", 0,
     "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><Upload><Key>k</Key><UploadId>u"
     "</UploadId></Upload><NextKeyMarker>k</NextKeyMarker><NextUploadIdMarker>u"
     "</NextUploadIdMarker></ListMultipartUploadsResult>"},
    {"s3", "listing_without_token", 0,
     "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"},
    {"s3", "error", 1,
     "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>The key does not exist."
     "</Message><RequestId>r1</RequestId><Region>eu-west-1</Region></Error>"},
    {"s3", "error_with_dtd", 1,
     "<!DOCTYPE e [<!ENTITY a \"b\"><!ENTITY c \"&a;&a;\">]><Error><Code>&c;</Code></Error>"},
    {"s3", "upload", 2,
     "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>u-1</UploadId>"
     "</InitiateMultipartUploadResult>"},
    {"s3", "completion", 3, "\"d41d8cd98f00b204e9800998ecf8427e\"\nAAAAAA==\n\"e<&>2\"\n\n"},
    {"s3", "credentials", 4,
     R"({"AccessKeyId":"AKIA","SecretAccessKey":"SECRETVALUE","Token":"t",)"
     R"("Expiration":"2026-11-22T20:46:26Z"})"},
    {"s3", "credentials_session", 4,
     R"({"AccessKeyId":"AKIA","SecretAccessKey":"SECRETVALUE","SessionToken":"t"})"},
    {"s3", "credentials_bad_time", 4,
     R"({"AccessKeyId":"AKIA","SecretAccessKey":"SECRETVALUE","Expiration":"soon"})"},
    {"s3", "time", 5, "2026-11-22T20:46:26Z"},
    {"s3", "time_fraction", 5, "2026-11-22T20:46:26.123456+00:00"},
    {"s3", "profile", 6,
     "[default]\nregion = eu-west-1\ns3 =\n  addressing_style = path\n[profile  x] # y\n"
     "aws_access_key_id=AKIA ; comment\n[services s]\ns3 = \n endpoint_url = http://h:1\n"},
    {"s3", "judge_success", 7, "\0\xc8\0\0\0\x09\0\x0a\0content-range: bytes 0-9/100\n\n"sv},
    {"s3", "judge_range", 7, "\0\xce\0\0\0\x09\0\x0a\0content-range: bytes 0-9/100\n\n"sv},
    {"s3", "judge_error", 7,
     "\0\xf7\x01\0\0\0\0\0\0retry-after: 2\nx-amz-request-id: r\n\n<Error><Code>SlowDown</Code>"
     "</Error>"sv},
    {"s3", "judge_redirect", 7,
     "\0\x33\x01\0\0\0\0\0\0location: http://other/\nx-amz-bucket-region: us-west-2\n\n"sv},
    {"http", "ok", 0,
     "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"e\"\r\nX-Amz-Request-Id: r\r\n\r\nhello"},
    {"http", "range_in_target", 1,
     "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-63/64\r\nContent-Length: 64\r\n\r\n"
     "0123456789012345678901234567890123456789012345678901234567890123"},
    {"http", "range_in_slices", 2,
     "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-63/64\r\nContent-Length: 64\r\n\r\n"
     "0123456789012345678901234567890123456789012345678901234567890123"},
    {"http", "too_long", 1,
     "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n40\r\n"
     "0123456789012345678901234567890123456789012345678901234567890123\r\n4\r\nmore\r\n0\r\n\r\n"},
    {"http", "head", 3, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"},
    {"http", "error", 0,
     "HTTP/1.1 503 Slow Down\r\nRetry-After: 1\r\nContent-Length: 45\r\n\r\n"
     "<Error><Code>SlowDown</Code><Message/></Error>"},
    {"http", "continue", 0,
     "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 307 Temporary Redirect\r\nLocation: http://h/\r\n\r\n"},
    {"http", "listing", 0,
     "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult><Contents><Key>k</Key>"
     "</Contents></ListBucketResult>"},
    {"addresses", "s3", 0,
     "s3://bucket/a/b?endpoint=http%3A%2F%2Fh%3A9000&region=us-east-1&profile=p&addressing=path\n"
     "region=eu-west-1\ns3.addressing_style=virtual\n"},
    {"addresses", "s3_dots", 0, "s3://my.bucket.name/x\nendpoint_url=https://h\n"},
    {"addresses", "rados", 1, "pool/name/space?conf=/etc/c&id=u&data_pool=d&stripe=65536"},
    {"addresses", "file_endpoint", 2, "file:///tmp/meet"},
    {"addresses", "tcp_endpoint", 2, "tcp://[::1]:29400"},
    {"addresses", "tcp_host", 2, "tcp://node1:29400"},
    {"addresses", "retention", 3, "\x02\x03loss:3\nacc:2:max\nbest\nx:1:min\n"},
    {"addresses", "open_path", 4, "file:/tmp/a/../b"},
    {"addresses", "open_relative", 4, "./runs:1/x"},
    {"addresses", "uri", 5, "a b/c?d&e=\xc3\xa9"},
    {"tensors", "patterns", 5, "model.layers.10.w\nmodel.**\n*.layers.[0-9]?.w\n!model.x\n"},
    {"tensors", "patterns_set", 5, "a.b\n[!x-z].b\nmodel\n"},
    {"records", "name_root", 7, "roots/ffffffffffffffba.root"},
    {"records", "name_page", 7, "pages/00000001-75cfa6cdf8b5cb86.steps"},
    {"records", "name_stripe", 7, "segments/00000001-75cfa6cdf8b5cb86.seg:0123456789abcdef:12"},
    {"records", "name_layout", 7, "1 1000 65536 3 0123456789abcdef"},
    {"records", "name_session", 7, "0000000112345678-7-0"},
};

}  // namespace cairn::fuzz
