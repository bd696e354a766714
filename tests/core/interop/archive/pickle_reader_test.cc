// Hand-written pickles: the value of each opcode, and pickles that must be refused.

#include "core/interop/archive/internal/pickle_reader.h"

#include <string>

#include "tests/core/tensor/test_tensor.h"

namespace cairn::core::internal {
namespace {

using cairn::testing::IsError;
using namespace std::string_literals;

// The tree borrows the bytes, so both live here.
class Pickled {
 public:
  explicit Pickled(std::string bytes) : bytes_(std::move(bytes)) {}
  Result<PickleTree> Parse() const { return ReadPickle(std::as_bytes(std::span(bytes_))); }

 private:
  std::string bytes_;
};

TEST(PickleReaderTest, ReadsNumbersOfEveryWidth) {
  const Pickled pickled(
      "\x80\x02(K\xff"
      "M\x01\x02J\xff\xff\xff\xff\x8a\x00\x8a\x02\x00\x80\x8a\x09"
      "\x00\x00\x00\x00\x00\x00\x00\x00\x01G\x3f\xf8\x00\x00\x00\x00\x00\x00t."s);
  CAIRN_ASSERT_OK_AND_ASSIGN(const PickleTree tree, pickled.Parse());
  const auto values = tree.children(tree.root());
  ASSERT_EQ(values.size(), 7u);
  EXPECT_EQ(tree.integer(values[0]), 255);
  EXPECT_EQ(tree.integer(values[1]), 0x201);
  EXPECT_EQ(tree.integer(values[2]), -1);
  EXPECT_EQ(tree.integer(values[3]), 0);
  EXPECT_EQ(tree.integer(values[4]), -32768);
  EXPECT_EQ(tree.kind(values[5]), PickleKind::kLong);
  EXPECT_EQ(tree.bytes(values[5]).size(), 9u);
  EXPECT_EQ(tree.real(values[6]), 1.5);
}

TEST(PickleReaderTest, ACallIsANodeAndIsNotExecuted) {
  const Pickled pickled("\x80\x02"s + "cos\nsystem\nX\x02\x00\x00\x00rm\x85R."s);
  CAIRN_ASSERT_OK_AND_ASSIGN(const PickleTree tree, pickled.Parse());
  ASSERT_EQ(tree.kind(tree.root()), PickleKind::kObject);
  const PickleTree::Object& object = tree.object(tree.root());
  EXPECT_EQ(tree.global(object.callee), "os.system");
  EXPECT_EQ(tree.text(tree.children(object.arguments)[0]), "rm");
  EXPECT_EQ(tree.globals(), std::vector<std::string>{"os.system"});
}

TEST(PickleReaderTest, ObjectsKeepStateElementsAndItems) {
  // C(), then BUILD with 1, APPEND 2, SETITEM 3: 4.
  const Pickled pickled("\x80\x02"s + "cm\nC\n)\x81K\x01"s + "bK\x02"s + "aK\x03K\x04s."s);
  CAIRN_ASSERT_OK_AND_ASSIGN(const PickleTree tree, pickled.Parse());
  const PickleTree::Object& object = tree.object(tree.root());
  ASSERT_TRUE(object.has_state);
  EXPECT_EQ(tree.integer(object.state), 1);
  ASSERT_EQ(object.elements.size(), 1u);
  EXPECT_EQ(tree.integer(object.elements[0]), 2);
  ASSERT_EQ(object.items.size(), 2u);
  EXPECT_EQ(tree.integer(object.items[1]), 4);
}

TEST(PickleReaderTest, TheMemoGivesTheSameNode) {
  const Pickled pickled("\x80\x04]\x94(h\x00h\x00"s + "e."s);
  CAIRN_ASSERT_OK_AND_ASSIGN(const PickleTree tree, pickled.Parse());
  const auto elements = tree.children(tree.root());
  ASSERT_EQ(elements.size(), 2u);
  EXPECT_EQ(elements[0], tree.root());  // a list that holds itself
  EXPECT_EQ(elements[1], tree.root());
}

TEST(PickleReaderTest, TextMayContainLoneSurrogatesButNothingElseThatIsNotUtf8) {
  CAIRN_EXPECT_OK(Pickled("\x80\x04\x8c\x03\xed\xb2\x80."s).Parse());
  for (const std::string& bad :
       {"\xc0\x80"s, "\xff"s, "\xe2\x82"s, "\xf4\x90\x80\x80"s, "\xe0\x80\x80"s}) {
    const std::string length(1, static_cast<char>(bad.size()));
    EXPECT_THAT(Pickled("\x80\x04\x8c"s + length + bad + ".").Parse(),
                IsError(ErrorCode::kDataLoss, "UTF-8"));
  }
}

struct Refused {
  const char* name;
  std::string pickle;
  ErrorCode code;
  const char* message;
};

class RefusedPickleTest : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedPickleTest, IsRefused) {
  EXPECT_THAT(Pickled(GetParam().pickle).Parse(), IsError(GetParam().code, GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedPickleTest,
    ::testing::Values(
        Refused{"Empty", "", ErrorCode::kDataLoss, "ends here"},
        Refused{"NoStop", "\x80\x02N"s, ErrorCode::kDataLoss, "ends here"},
        Refused{"StopWithNothing", "\x80\x02."s, ErrorCode::kDataLoss, "where there is none"},
        Refused{"LeftOver", "\x80\x02NN."s, ErrorCode::kDataLoss, "values left"},
        Refused{"OpenMark", "\x80\x02N(."s, ErrorCode::kDataLoss, "where there is none"},
        Refused{"NoMark", "\x80\x02Nt."s, ErrorCode::kDataLoss, "where there is none"},
        Refused{"UnderAMark", "\x80\x02N(b."s, ErrorCode::kDataLoss, "where there is none"},
        Refused{"UnknownOpcode", "\x80\x02\xfe."s, ErrorCode::kDataLoss, "0xfe is not an opcode"},
        Refused{"NewProtocol", "\x80\x06N."s, ErrorCode::kUnimplemented, "protocol 6"},
        Refused{"TextOpcode", "I1\n."s, ErrorCode::kUnimplemented, "0x49"},
        Refused{"Extension", "\x80\x02\x82\x01."s, ErrorCode::kUnimplemented, "0x82"},
        Refused{"Buffer", "\x80\x05\x97."s, ErrorCode::kUnimplemented, "0x97"},
        Refused{"LongText", "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."s, ErrorCode::kDataLoss,
                "ends here"},
        Refused{"Frame", "\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff."s, ErrorCode::kDataLoss,
                "frame"},
        Refused{"MemoNumber", "\x80\x02Nr\xff\xff\xff\x7f."s, ErrorCode::kDataLoss, "memo number"},
        Refused{"UnsetMemo", "\x80\x02h\x00."s, ErrorCode::kDataLoss, "did not memoize"},
        Refused{"AppendToDict", "\x80\x02}Na."s, ErrorCode::kDataLoss, "not a container"},
        Refused{"OddItems", "\x80\x02}(Nu."s, ErrorCode::kDataLoss, "without a value"},
        Refused{"StateTwice", "\x80\x02"s + "ca\nb\n)RNbNb."s, ErrorCode::kDataLoss, "two states"},
        Refused{"StateOfAValue", "\x80\x02NNb."s, ErrorCode::kDataLoss, "plain value"},
        Refused{"NamelessClass", "\x80\x04NN\x93."s, ErrorCode::kDataLoss, "not a text"},
        Refused{"EndlessLine", "\x80\x02"s + "cmodule"s, ErrorCode::kDataLoss, "without an end"},
        Refused{"Keywords", "\x80\x04"s + "ca\nb\n)}(NNu\x92."s, ErrorCode::kUnimplemented,
                "keyword"}),
    [](const auto& info) { return std::string(info.param.name); });

// A pickle with most opcodes, cut off at every byte and with every single bit flipped, does not
// crash the reader.
TEST(PickleReaderTest, SurvivesEveryCutAndFlip) {
  const std::string good = "\x80\x02}q\x00(X\x01\x00\x00\x00"s + "aq\x01"s +
                           "ctorch\nSize\nq\x02(K\x01K\x02tq\x03\x85Rq\x04"s +
                           "X\x01\x00\x00\x00"s +
                           "b](K\x01G\x3f\xf8\x00\x00\x00\x00\x00\x00h\x04"s +
                           "e\x8a\x02\x00\x01Nu."s.substr(0, 4) + "\x88u."s;
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(Pickled(good.substr(0, length)).Parse()) << length;
  }
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    const Pickled pickled(bad);
    const auto tree = pickled.Parse();  // either outcome is fine
    if (tree) {
      EXPECT_LE(tree->root(), 8 * good.size());
    }
  }
}

}  // namespace
}  // namespace cairn::core::internal
