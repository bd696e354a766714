// Archives of our writer, read back intact and damaged.

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/interop/archive/internal/crc32.h"
#include "core/interop/archive/internal/zip_reader.h"
#include "core/interop/archive/internal/zip_records.h"
#include "core/interop/archive/internal/zip_writer.h"
#include "tests/core/tensor/test_tensor.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::IsError;
using cairn::testing::ScopedTempDir;

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

class ZipTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& before = {}) {
    const std::string path = directory_ / "x.zip";
    auto out = DurableFile::Create(path);
    EXPECT_TRUE(out);
    CAIRN_EXPECT_OK((*out)->Write(BytesOf(before)));
    ZipWriter zip(**out);
    CAIRN_EXPECT_OK(zip.Add("a/data.pkl", BytesOf("pickle")));
    CAIRN_EXPECT_OK(zip.Add("a/empty", {}));
    CAIRN_EXPECT_OK(zip.Begin("a/data/0", 300));
    CAIRN_EXPECT_OK(zip.Append(BytesOf(std::string(100, 'x'))));
    CAIRN_EXPECT_OK(zip.Append(BytesOf(std::string(200, 'y'))));
    CAIRN_EXPECT_OK(zip.End());
    const Result<uint64_t> length = zip.Finish();
    EXPECT_TRUE(length);
    CAIRN_EXPECT_OK((*out)->Finish());
    EXPECT_EQ(std::filesystem::file_size(path), before.size() + length.value_or(0));
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static size_t FindLast(const std::string& archive, const char* signature) {
    return archive.rfind(std::string(signature, 4));
  }
  ScopedTempDir directory_;
};

TEST_F(ZipTest, ATemporaryFileIsANewFile) {
  const std::string name = fmt::format("x.zip.{}.tmp", ::getpid());
  std::ofstream(directory_ / "foreign") << "foreign";
  std::filesystem::create_symlink("foreign", directory_ / name);
  Write();
  EXPECT_TRUE(std::filesystem::is_symlink(directory_ / name));
  EXPECT_EQ(std::filesystem::file_size(directory_ / "foreign"), 7u);
}

TEST_F(ZipTest, ReadsWhatWasWritten) {
  const std::string archive = Write();
  CAIRN_ASSERT_OK_AND_ASSIGN(const ZipReader zip, ZipReader::Open(BytesOf(archive)));
  ASSERT_EQ(zip.members().size(), 3u);
  EXPECT_TRUE(zip.has_checksums());
  const ZipMember* const data = zip.Find("a/data/0");
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(data->bytes.size(), 300u);
  EXPECT_EQ(static_cast<char>(data->bytes[100]), 'y');
  EXPECT_EQ(Crc32(0, data->bytes), data->crc32);
  EXPECT_EQ(zip.Find("a/absent"), nullptr);
  for (const ZipMember& member : zip.members()) {
    EXPECT_EQ((member.bytes.data() - BytesOf(archive).data()) % 64, 0) << member.name;
  }
}

TEST_F(ZipTest, EveryCutIsRefused) {
  const std::string archive = Write();
  for (size_t length = 0; length < archive.size(); ++length) {
    EXPECT_FALSE(ZipReader::Open(BytesOf(archive).first(length))) << length;
  }
}

// Whatever a flipped bit changes, members stay inside the archive.
TEST_F(ZipTest, NoFlippedBitLeadsOutOfTheArchive) {
  const std::string archive = Write();
  for (size_t bit = 0; bit < 8 * archive.size(); ++bit) {
    std::string bad = archive;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    const auto zip = ZipReader::Open(BytesOf(bad));
    if (!zip) continue;
    for (const ZipMember& member : zip->members()) {
      const auto at = static_cast<uint64_t>(member.bytes.data() - BytesOf(bad).data());
      ASSERT_LE(at, bad.size()) << bit;
      ASSERT_LE(member.bytes.size(), bad.size() - at) << bit;
    }
  }
}

TEST_F(ZipTest, RefusesMembersThatShareBytes) {
  std::string archive = Write();
  // The third record of the directory refers to the member of the first, with another name.
  CAIRN_ASSERT_OK_AND_ASSIGN(const ZipReader zip, ZipReader::Open(BytesOf(archive)));
  std::string two = archive;
  const size_t last = FindLast(two, "PK\x01\x02");
  two.replace(last + 42, 4, std::string(4, '\0'));
  EXPECT_THAT(ZipReader::Open(BytesOf(two)), IsError(ErrorCode::kDataLoss, "disagree"));
}

TEST_F(ZipTest, RefusesCompressionAndEncryptionByTheMembersName) {
  std::string compressed = Write();
  compressed[FindLast(compressed, "PK\x01\x02") + 10] = 8;
  EXPECT_THAT(ZipReader::Open(BytesOf(compressed)), IsError(ErrorCode::kUnimplemented, "a/data/0"));
  std::string encrypted = Write();
  encrypted[FindLast(encrypted, "PK\x01\x02") + 8] |= 1;
  EXPECT_THAT(ZipReader::Open(BytesOf(encrypted)), IsError(ErrorCode::kUnimplemented, "encrypted"));
}

TEST_F(ZipTest, RefusesACountThatTheDirectoryCannotHold) {
  std::string archive = Write();
  archive.replace(FindLast(archive, "PK\x06\x06") + 32, 8, std::string(7, '\xff') + '\x0f');
  EXPECT_THAT(ZipReader::Open(BytesOf(archive)), IsError(ErrorCode::kDataLoss, "too short"));
}

TEST_F(ZipTest, AnArchiveAfterOtherBytesIsTheSameArchive) {
  EXPECT_EQ(Write("before").substr(6), Write());
}

TEST_F(ZipTest, DirectoriesOfLongMembersRoundTrip) {
  // Lengths and offsets that need the zip64 fields, without the bytes.
  const std::vector<ZipRecord> records = {
      {.name = "short", .length_bytes = 7, .header_offset_bytes = 0, .crc32 = 1},
      {.name = "long", .length_bytes = uint64_t{5} << 32, .header_offset_bytes = 128, .crc32 = 2},
      {.name = "limit", .length_bytes = 0xffffffff, .header_offset_bytes = uint64_t{6} << 32},
      {.name = "far", .length_bytes = 0xfffffffe, .header_offset_bytes = 0xffffffff, .crc32 = 4}};
  const std::string directory = EncodeZipDirectory(records, uint64_t{7} << 32);
  CAIRN_ASSERT_OK_AND_ASSIGN(const ZipDirectory decoded,
                             DecodeZipDirectory(BytesOf(directory), uint64_t{7} << 32));
  EXPECT_EQ(decoded.offset_bytes, uint64_t{7} << 32);
  EXPECT_EQ(decoded.records, records);
  EXPECT_THAT(DecodeZipDirectory(BytesOf(directory), 0), IsError(ErrorCode::kDataLoss, "damaged"));
}

TEST_F(ZipTest, AWriterThatIsDroppedLeavesNoFile) {
  {
    auto out = DurableFile::Create(directory_ / "y.zip");
    ASSERT_TRUE(out);
    CAIRN_EXPECT_OK(ZipWriter(**out).Add("a", BytesOf("b")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

}  // namespace
}  // namespace cairn::core::internal
